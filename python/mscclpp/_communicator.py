"""Communicators: memory, connections and semaphores between ranks."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from typing import TypeVar

from mscclpp._aliases import accept_aliases
from mscclpp._bootstrap import TcpBootstrap
from mscclpp._connection import Connection
from mscclpp._device import DeviceType, EndpointConfig
from mscclpp._env import env
from mscclpp._errors import Error, ErrorCode, engine_errors, invalid, translate_error
from mscclpp._future import Future
from mscclpp._host_memory import file_of
from mscclpp._mailbox import Mailbox
from mscclpp._memory import RegisteredMemory
from mscclpp._semaphore import Semaphore
from mscclpp._transport import Transport, TransportFlags, no_infiniband
from ringfold import _native

# The timeout of a connection, once both ranks have called connect.
CONNECT_SECONDS = 30.0

T = TypeVar("T")
_counter = itertools.count()
_alive: weakref.WeakSet[Communicator] = weakref.WeakSet()


def latest() -> Communicator:
    """The newest communicator of this process."""
    communicators = list(_alive)
    if not communicators:
        raise invalid("mapping memory failed: this process has no communicator")
    return max(communicators, key=lambda communicator: communicator.number)


def check_all() -> None:
    """Raises if a communicator of this process has failed: waits in kernels would end at once."""
    for communicator in list(_alive):
        communicator.check()


class Communicator:
    """Registers memory, and makes connections and semaphores with other ranks.

    Both ranks make the call, and each gets a :class:`Future`, whose ``get()`` waits for the other. Calls match in their order for
    each pair of ranks and each tag, in any order of ``get()``.
    """

    def __init__(self, bootstrap: TcpBootstrap, context: object = None) -> None:
        group = bootstrap.native
        self._bootstrap = bootstrap
        self._mailbox = Mailbox(bootstrap)
        with engine_errors():
            self.number = next(_counter)
            name = f"rank {bootstrap.get_rank()}.{os.getpid()}.{self.number}"
            self.port = _native.Port(name, None)
            self.port.watch(group)
        # Memory that was sent without a `keep`: only this keeps the registration.
        self._sent: list[RegisteredMemory] = []
        _alive.add(self)

    def bootstrap(self) -> TcpBootstrap:
        """The bootstrap of the ranks."""
        return self._bootstrap

    # --- memory ----------------------------------------------------------------------------------------------------

    @accept_aliases(flags="transports")
    def register_memory(
        self, ptr: int, size: int, transports: TransportFlags | Transport, keep: object = None
    ) -> RegisteredMemory:
        """Registers memory of this rank by its address, so that other ranks can write it.

        With ``keep``, an object that keeps it alive, the registration ends with the returned object. Without, the caller keeps the
        memory alive, and once it was sent the registration ends with the communicator.
        """
        self.check()
        flags = TransportFlags(transports)
        _reject_infiniband(flags)
        if size <= 0:
            raise invalid(f"invalid size of memory: {size} bytes; must be > 0")
        if not ptr:
            raise invalid("invalid address 0 of memory")
        file, keeper = file_of(int(ptr), int(size))
        with engine_errors():
            held = (keep, keeper)
            native = self.port.register(int(ptr), int(size), flags.value, file, held)
        return RegisteredMemory(native, is_lasting=keep is None)

    @accept_aliases(rank="remote_rank")
    def send_memory(self, memory: RegisteredMemory, remote_rank: int, tag: int = 0) -> None:
        """Sends a registration to a rank, which calls :meth:`recv_memory`. Does not wait for it."""
        if not isinstance(memory, RegisteredMemory):
            raise invalid(f"invalid memory: must be a RegisteredMemory, not {type(memory).__name__}")
        if memory.is_lasting and memory not in self._sent:
            self._sent.append(memory)
        self._mailbox.send(remote_rank, tag, "memory", memory.serialize())

    @accept_aliases(rank="remote_rank")
    def recv_memory(self, remote_rank: int, tag: int = 0) -> Future[RegisteredMemory]:
        """The memory that a rank sends by :meth:`send_memory`."""

        def finish(record: bytes, timeout: float | None) -> RegisteredMemory:
            with engine_errors():
                return RegisteredMemory(self.port.remote(record))

        return self._expect(remote_rank, tag, "memory", finish)

    # --- connections -----------------------------------------------------------------------------------------------

    @accept_aliases(cfg="config", local_config="config", rank="remote_rank")
    def connect(
        self,
        config: EndpointConfig | Transport | int,
        remote_rank: int = 0,
        tag: int | EndpointConfig | Transport = 0,
    ) -> Future[Connection]:
        """Connects to a rank, which makes the same call. The config may be a transport, and, as once, come last."""
        config, remote_rank, tag = _connect_arguments(config, remote_rank, tag)
        if config.transport is Transport.Unknown:
            raise invalid("a connection needs a transport: set EndpointConfig.transport")
        if config.transport.is_ib:
            raise no_infiniband(config.transport)
        through_host = config.through_host
        if through_host and config.transport is not Transport.CudaIpc:
            raise invalid(
                f"invalid EndpointConfig: through_host is for Transport.CudaIpc, not {config.transport.name}"
            )
        if through_host is None:
            through_host = env().cuda_ipc_through_host
        with engine_errors():
            offer = self.port.offer(config.transport.value, _device_number(config), through_host)
        self._mailbox.send(remote_rank, tag, "connection", offer.record)

        def finish(record: bytes, timeout: float | None) -> Connection:
            with engine_errors():
                seconds = CONNECT_SECONDS if timeout is None else timeout
                return Connection(self.port.connect(offer, record, remote_rank, seconds), self)

        return self._expect(remote_rank, tag, "connection", finish)

    def remote_rank_of(self, connection: Connection) -> int:
        """The rank at the other end of a connection."""
        return connection.remote_rank()

    # --- semaphores ------------------------------------------------------------------------------------------------

    @accept_aliases(rank="remote_rank")
    def build_semaphore(
        self, connection: Connection, remote_rank: int | None = None, tag: int = 0
    ) -> Future[Semaphore]:
        """A semaphore on a connection. The other rank makes the same call."""
        peer = connection.remote_rank() if remote_rank is None else remote_rank
        with engine_errors():
            offer = _native.PortSemaphoreOffer(self.port, connection.native, None)
        self._mailbox.send(peer, tag, "semaphore", offer.record)

        def finish(record: bytes, timeout: float | None) -> Semaphore:
            with engine_errors():
                return Semaphore(offer.join(record), connection)

        return self._expect(peer, tag, "semaphore", finish)

    # --- failures --------------------------------------------------------------------------------------------------

    def abort(self, why: str = "the program called abort()") -> None:
        """Ends all waits on this communicator, also in kernels; every later call fails."""
        self.port.abort(why)

    def failure(self) -> str | None:
        """Why it failed: a rank died, a wait in a kernel timed out, or a rank aborted. None while it works."""
        return self.port.failure()

    def check(self) -> None:
        """Raises if it has failed."""
        why = self.failure()
        if why is None:
            return
        lost = self._bootstrap.native.failure()
        if lost is not None:
            raise translate_error(lost)
        # Only the text tells the cause if another rank reported it.
        raise Error(ErrorCode.RemoteError if " is lost" in why else ErrorCode.Aborted, why)

    def set_spin_seconds(self, seconds: float) -> None:
        """Sets the timeout of waits in kernels (default 300 s)."""
        with engine_errors():
            self.port.set_spin_seconds(seconds)

    # --- old names -------------------------------------------------------------------------------------------------

    @accept_aliases(rank="remote_rank", cfg="config", local_config="config")
    def connect_on_setup(
        self, remote_rank: int, tag: int, config: EndpointConfig | Transport
    ) -> Future[Connection]:
        """Old: :meth:`connect`, with its arguments in another order."""
        return self.connect(config, remote_rank, tag)

    @accept_aliases(rank="remote_rank")
    def send_memory_on_setup(self, memory: RegisteredMemory, remote_rank: int, tag: int) -> None:
        """Old: :meth:`send_memory`."""
        self.send_memory(memory, remote_rank, tag)

    @accept_aliases(rank="remote_rank")
    def recv_memory_on_setup(self, remote_rank: int, tag: int) -> Future[RegisteredMemory]:
        """Old: :meth:`recv_memory`."""
        return self.recv_memory(remote_rank, tag)

    def setup(self) -> None:
        """Old: does nothing."""

    def _expect(
        self, peer: int, tag: int, kind: str, finish: Callable[[bytes, float | None], T]
    ) -> Future[T]:
        """The result of ``finish`` for the next record of a rank with a tag."""
        self.check()
        mailbox = self._mailbox
        number = mailbox.expect(peer, tag)

        def receive(timeout: float | None) -> T:
            value = finish(mailbox.receive(peer, tag, number, kind, timeout), timeout)
            mailbox.done(peer, tag, number)
            return value

        return Future(receive)


def _connect_arguments(
    first: EndpointConfig | Transport | int,
    second: int = 0,
    third: int | EndpointConfig | Transport = 0,
    /,
) -> tuple[EndpointConfig, int, int]:
    """The arguments in either order: the config first or last."""
    config, remote_rank, tag = (
        (first, second, third) if not isinstance(first, int) else (third, first, second)
    )
    if isinstance(config, Transport):
        config = EndpointConfig(config)
    if not isinstance(config, EndpointConfig) or not isinstance(tag, int):
        raise invalid(
            "invalid arguments: must be connect(config, remote_rank, tag) with an EndpointConfig or a Transport"
        )
    return config, int(remote_rank), tag


def _device_number(config: EndpointConfig) -> int:
    """The GPU whose memory a connection is for; -1 for host memory."""
    device = config.device
    if device.type is DeviceType.CPU:
        return -1
    if device.id >= 0:
        return device.id
    if config.transport is not Transport.CudaIpc:
        return -1
    with engine_errors():
        return _native.cuda_current()


def _reject_infiniband(flags: TransportFlags) -> None:
    for transport in flags:
        if transport.is_ib:
            raise no_infiniband(transport)
