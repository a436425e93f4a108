"""The proxy: a host thread that executes what kernels push."""

from __future__ import annotations

from mscclpp._aliases import accept_aliases
from mscclpp._channel import BasePortChannel, PortChannel
from mscclpp._connection import Connection
from mscclpp._errors import engine_errors, invalid
from mscclpp._fifo import FIFO_SIZE
from mscclpp._memory import RegisteredMemory
from mscclpp._semaphore import Host2DeviceSemaphore, Semaphore
from ringfold import _native


class ProxyService:
    """Executes writes, signals and flushes that kernels or the host push into its FIFO.

        service = ProxyService()
        channels = group.make_port_channels(service, memory, connections)
        service.start_proxy()
        ...                                    # kernels run
        service.stop_proxy()

    A failure ends the waits of all kernels on the communicator, and its ``failure()`` tells why.
    """

    def __init__(self, fifo_size: int = FIFO_SIZE) -> None:
        if fifo_size < 1:
            raise invalid(f"invalid FIFO size: {fifo_size} triggers; must be at least 1")
        self.fifo_size = fifo_size
        """The capacity of the FIFO in triggers."""
        with engine_errors():
            self._native = _native.PortProxy(None, fifo_size)
        self._kept: list[object] = []
        self._semaphores: dict[int, Host2DeviceSemaphore] = {}

    def add_memory(self, memory: RegisteredMemory) -> int:
        """Adds memory; returns its id."""
        native = RegisteredMemory.native_of(memory, "memory")
        with engine_errors():
            number = self._native.add_memory(native)
        self._kept.append(memory)
        return number

    def keep(self, memory: RegisteredMemory) -> None:
        """Keeps memory alive as long as the service."""
        self._kept.append(memory)

    def add_semaphore(
        self, semaphore: Semaphore | Host2DeviceSemaphore | object, connection: object = None
    ) -> int:
        """Adds a semaphore; returns its id.

        It is a :class:`Semaphore`, a :class:`Host2DeviceSemaphore`, or, if the other rank makes the same call, a connection, or a
        communicator and a connection.
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
                "invalid semaphore: must be a Semaphore, a Host2DeviceSemaphore, a connection, or a communicator and a connection, "
                f"not {type(semaphore).__name__}"
            )
        with engine_errors():
            number = self._native.add_semaphore(wrapper.native)
        self._semaphores[number] = wrapper
        return number

    def build_and_add_semaphore(self, communicator: object, connection: object) -> int:
        """Old: :meth:`add_semaphore` with the same arguments."""
        return self.add_semaphore(communicator, connection)

    @accept_aliases(id="semaphore_id")
    def port_channel(self, semaphore_id: int, dst: int, src: int) -> PortChannel:
        """A channel between two memories, by ids."""
        with engine_errors():
            return PortChannel(self._native.channel(semaphore_id, dst, src), self)

    @accept_aliases(id="semaphore_id")
    def base_port_channel(self, semaphore_id: int) -> BasePortChannel:
        """A channel whose memories are named with each put."""
        with engine_errors():
            return BasePortChannel(self._native.base_channel(semaphore_id), self)

    def start_proxy(self) -> None:
        """Starts the thread."""
        with engine_errors():
            self._native.start()

    def stop_proxy(self) -> None:
        """Ends the thread after everything that was pushed. It may be started again."""
        with engine_errors():
            self._native.stop()

    # Old names.
    proxy_channel = port_channel
    base_proxy_channel = base_port_channel
