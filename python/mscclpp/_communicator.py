"""What ranks do together to be able to write each other's memory."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from typing import TypeVar

from mscclpp._bootstrap import TcpBootstrap
from mscclpp._connection import Connection
from mscclpp._device import DeviceType, EndpointConfig
from mscclpp._errors import Error, ErrorCode, invalid, told, translated
from mscclpp._future import Future
from mscclpp._host_memory import file_of
from mscclpp._mailbox import Mailbox
from mscclpp._memory import RegisteredMemory
from mscclpp._semaphore import Semaphore
from mscclpp._spelling import also
from mscclpp._transport import Transport, TransportFlags, no_infiniband
from ringfold import _native

# How long two ranks may take to connect, once both have asked for it.
CONNECT_SECONDS = 30.0

T = TypeVar("T")
_counter = itertools.count()
_living: weakref.WeakSet[Communicator] = weakref.WeakSet()


def latest() -> Communicator:
    """The communicator that was made last, and lives."""
    living = list(_living)
    if not living:
        raise invalid("there is no communicator in this process that could map this memory")
    return max(living, key=lambda communicator: communicator.number)


def check_living() -> None:
    """Raises if a communicator of this process is over: waits in kernels would end at once."""
    for communicator in list(_living):
        communicator.check()


class Communicator:
    """Registers memory, and makes it, connections and semaphores known between ranks.

    What two ranks have a part in is asked for on both, and comes as a :class:`Future`: nothing waits before its ``get()``. Calls
    are matched in their order for each pair of ranks and each tag, in whatever order the futures are asked.
    """

    def __init__(self, bootstrap: TcpBootstrap, context: object = None) -> None:
        group = bootstrap.native
        self._bootstrap = bootstrap
        self._mailbox = Mailbox(bootstrap)
        with told():
            self.number = next(_counter)
            name = f"rank {bootstrap.get_rank()}.{os.getpid()}.{self.number}"
            self._port = _native.Port(name, None)
            self._port.watch(group)
        # Memory that others were told of by its address alone: nothing else may hold the registration.
        self._told: list[RegisteredMemory] = []
        _living.add(self)

    @property
    def port(self) -> _native.Port:
        """The engine's object."""
        return self._port

    def bootstrap(self) -> TcpBootstrap:
        """Where the ranks met."""
        return self._bootstrap

    # --- memory ----------------------------------------------------------------------------------------------------

    @also(flags="transports")
    def register_memory(
        self, ptr: int, size: int, transports: TransportFlags | Transport, keep: object = None
    ) -> RegisteredMemory:
        """Lays memory of this rank open for others, by its address. It has to live as long as others write it.

        With ``keep``, which is held meanwhile, it is open as long as the object that this gives; without, until the communicator is
        gone, once another rank was told of it.
        """
        self.check()
        flags = TransportFlags(transports)
        _refuse_infiniband(flags)
        if size <= 0:
            raise invalid(f"memory of {size} bytes can't be registered")
        if not ptr:
            raise invalid("memory at address 0 can't be registered")
        file, keeper = file_of(int(ptr), int(size))
        with told():
            held = (keep, keeper)
            native = self._port.register(int(ptr), int(size), flags.value, file, held)
        return RegisteredMemory(native, is_lasting=keep is None)

    @also(rank="remote_rank")
    def send_memory(self, memory: RegisteredMemory, remote_rank: int, tag: int = 0) -> None:
        """Makes memory known to a rank, which calls :meth:`recv_memory`. Does not wait for it."""
        if not isinstance(memory, RegisteredMemory):
            raise invalid(f"send_memory takes a RegisteredMemory, not {type(memory).__name__}")
        if memory.is_lasting and memory not in self._told:
            self._told.append(memory)
        self._mailbox.send(remote_rank, tag, "memory", memory.serialize())

    @also(rank="remote_rank")
    def recv_memory(self, remote_rank: int, tag: int = 0) -> Future[RegisteredMemory]:
        """Memory that a rank makes known by :meth:`send_memory`."""

        def finish(record: bytes, timeout: float | None) -> RegisteredMemory:
            with told():
                return RegisteredMemory(self._port.remote(record))

        return self._expect(remote_rank, tag, "memory", finish)

    # --- connections -----------------------------------------------------------------------------------------------

    @also(cfg="config", local_config="config", rank="remote_rank")
    def connect(
        self,
        config: EndpointConfig | Transport | int,
        remote_rank: int = 0,
        tag: int | EndpointConfig | Transport = 0,
    ) -> Future[Connection]:
        """Connects with a rank, which does the same. The config may be a transport alone; once it came last, and that is taken
        too.
        """
        config, remote_rank, tag = _connect_arguments(config, remote_rank, tag)
        if config.transport is Transport.Unknown:
            raise invalid("a connection needs a transport")
        if config.transport.is_ib:
            raise no_infiniband(config.transport)
        with told():
            offer = self._port.offer(config.transport.value, _device_number(config))
        self._mailbox.send(remote_rank, tag, "connection", offer.record)

        def finish(record: bytes, timeout: float | None) -> Connection:
            with told():
                seconds = CONNECT_SECONDS if timeout is None else timeout
                return Connection(self._port.connect(offer, record, remote_rank, seconds), self)

        return self._expect(remote_rank, tag, "connection", finish)

    def remote_rank_of(self, connection: Connection) -> int:
        """The rank at the other end of a connection."""
        return connection.remote_rank()

    # --- semaphores ------------------------------------------------------------------------------------------------

    @also(rank="remote_rank")
    def build_semaphore(
        self, connection: Connection, remote_rank: int | None = None, tag: int = 0
    ) -> Future[Semaphore]:
        """A semaphore at each end of a connection. The other rank does the same."""
        peer = connection.remote_rank() if remote_rank is None else remote_rank
        with told():
            offer = _native.PortSemaphoreOffer(self._port, connection.native, None)
        self._mailbox.send(peer, tag, "semaphore", offer.record)

        def finish(record: bytes, timeout: float | None) -> Semaphore:
            with told():
                return Semaphore(offer.join(record), connection)

        return self._expect(peer, tag, "semaphore", finish)

    # --- how it is -------------------------------------------------------------------------------------------------

    def abort(self, why: str = "the program gave up") -> None:
        """Ends all that waits on this communicator, in kernels too; every later call on it fails."""
        self._port.abort(why)

    def failure(self) -> str | None:
        """Why nothing goes on any more: a rank died, a kernel waited in vain, or somebody aborted. None if all is well."""
        return self._port.failure()

    def check(self) -> None:
        """Raises if nothing goes on any more."""
        why = self.failure()
        if why is None:
            return
        lost = self._bootstrap.native.failure()
        if lost is not None:
            raise translated(lost)
        # Whoever was told of it by others knows the words alone.
        raise Error(ErrorCode.RemoteError if " is lost" in why else ErrorCode.Aborted, why)

    def set_spin_seconds(self, seconds: float) -> None:
        """How long a wait in a kernel may take (300 s unless set)."""
        with told():
            self._port.set_spin_seconds(seconds)

    # --- old names -------------------------------------------------------------------------------------------------

    @also(rank="remote_rank", cfg="config", local_config="config")
    def connect_on_setup(
        self, remote_rank: int, tag: int, config: EndpointConfig | Transport
    ) -> Future[Connection]:
        """Old: :meth:`connect`, with its arguments in another order."""
        return self.connect(config, remote_rank, tag)

    @also(rank="remote_rank")
    def send_memory_on_setup(self, memory: RegisteredMemory, remote_rank: int, tag: int) -> None:
        """Old: :meth:`send_memory`."""
        self.send_memory(memory, remote_rank, tag)

    @also(rank="remote_rank")
    def recv_memory_on_setup(self, remote_rank: int, tag: int) -> Future[RegisteredMemory]:
        """Old: :meth:`recv_memory`."""
        return self.recv_memory(remote_rank, tag)

    def setup(self) -> None:
        """Old: does nothing, for nothing waits for it any more."""

    def _expect(
        self, peer: int, tag: int, kind: str, finish: Callable[[bytes, float | None], T]
    ) -> Future[T]:
        """What becomes of the next record of a rank with a tag."""
        self.check()
        mailbox = self._mailbox
        place = mailbox.expect(peer, tag)

        def receive(timeout: float | None) -> T:
            value = finish(mailbox.receive(peer, tag, place, kind, timeout), timeout)
            mailbox.done(peer, tag, place)
            return value

        return Future(receive)


def _connect_arguments(
    first: EndpointConfig | Transport | int,
    second: int = 0,
    third: int | EndpointConfig | Transport = 0,
    /,
) -> tuple[EndpointConfig, int, int]:
    """Both orders: the config first, or last as it was once."""
    config, remote_rank, tag = (
        (first, second, third) if not isinstance(first, int) else (third, first, second)
    )
    if isinstance(config, Transport):
        config = EndpointConfig(config)
    if not isinstance(config, EndpointConfig) or not isinstance(tag, int):
        raise invalid("connect(config, remote_rank, tag): the config is an EndpointConfig or a Transport")
    return config, int(remote_rank), tag


def _device_number(config: EndpointConfig) -> int:
    """The GPU whose memory a connection is for, -1 if it is for the host's alone."""
    device = config.device
    if device.type is DeviceType.CPU:
        return -1
    if device.id >= 0:
        return device.id
    if config.transport is not Transport.CudaIpc:
        return -1
    with told():
        return _native.cuda_current()


def _refuse_infiniband(flags: TransportFlags) -> None:
    for transport in flags:
        if transport.is_ib:
            raise no_infiniband(transport)
