"""The proxy: a thread of the host that does what kernels push into its queue."""

from __future__ import annotations

from mscclpp._channel import BasePortChannel, PortChannel
from mscclpp._connection import Connection
from mscclpp._errors import invalid, told
from mscclpp._fifo import FIFO_SIZE
from mscclpp._memory import RegisteredMemory
from mscclpp._semaphore import Host2DeviceSemaphore, Semaphore
from mscclpp._spelling import also
from ringfold import _native


class ProxyService:
    """Executes writes, signals and flushes that kernels (or the host) push into its queue.

        service = ProxyService()
        channels = group.make_port_channels(service, memory, connections)
        service.start_proxy()
        ...                                    # kernels run
        service.stop_proxy()

    What fails on the way ends the waits of all kernels on that communicator, and its ``failure()`` says why.
    """

    def __init__(self, fifo_size: int = FIFO_SIZE) -> None:
        if fifo_size < 1:
            raise invalid(f"a queue of {fifo_size} triggers is none")
        self._fifo_size = fifo_size
        with told():
            self._native = _native.PortProxy(None, fifo_size)
        self._kept: list[object] = []
        self._semaphores: dict[int, Host2DeviceSemaphore] = {}

    @property
    def fifo_size(self) -> int:
        """How many triggers the queue holds."""
        return self._fifo_size

    def add_memory(self, memory: RegisteredMemory) -> int:
        """Makes memory known; gives its id."""
        native = RegisteredMemory.native_of(memory, "memory")
        with told():
            number = self._native.add_memory(native)
        self._kept.append(memory)
        return number

    def keep(self, memory: RegisteredMemory) -> None:
        """Holds memory as long as this lives."""
        self._kept.append(memory)

    def add_semaphore(
        self, semaphore: Semaphore | Host2DeviceSemaphore | object, connection: object = None
    ) -> int:
        """Makes a semaphore known; gives its id. It is a :class:`Semaphore`, a :class:`Host2DeviceSemaphore`, a connection, or a
        communicator and a connection: for these two the other rank does the same.
        """
        if isinstance(semaphore, Semaphore):
            wrapper = Host2DeviceSemaphore(semaphore)
        elif isinstance(semaphore, Host2DeviceSemaphore):
            wrapper = semaphore
        elif isinstance(semaphore, Connection):
            wrapper = Host2DeviceSemaphore(semaphore.communicator, semaphore)
        elif hasattr(semaphore, "build_semaphore") and isinstance(connection, Connection):
            wrapper = Host2DeviceSemaphore(semaphore, connection)  # type: ignore[arg-type]
        else:
            raise invalid(
                "a proxy takes a Semaphore, a Host2DeviceSemaphore, a connection, or a communicator and a connection, not "
                f"{type(semaphore).__name__}"
            )
        with told():
            number = self._native.add_semaphore(wrapper.native)
        self._semaphores[number] = wrapper
        return number

    def build_and_add_semaphore(self, communicator: object, connection: object) -> int:
        """Old: :meth:`add_semaphore` with the same arguments."""
        return self.add_semaphore(communicator, connection)

    @also(id="semaphore_id")
    def port_channel(self, semaphore_id: int, dst: int, src: int) -> PortChannel:
        """A channel from one memory to another, all by their ids."""
        with told():
            return PortChannel(self._native.channel(semaphore_id, dst, src), self)

    @also(id="semaphore_id")
    def base_port_channel(self, semaphore_id: int) -> BasePortChannel:
        """A channel whose memories are named at each call."""
        with told():
            return BasePortChannel(self._native.base_channel(semaphore_id), self)

    def start_proxy(self) -> None:
        """Starts the thread."""
        with told():
            self._native.start()

    def stop_proxy(self) -> None:
        """Executes what was pushed, and ends the thread. It may be started again."""
        with told():
            self._native.stop()

    # Old names.
    proxy_channel = port_channel
    base_proxy_channel = base_port_channel
