"""Bootstrap: how ranks connect, and their first messages."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import socket
import threading
import time
import weakref
from collections import defaultdict, deque
from typing import Any, Protocol, Self

from mscclpp._aliases import accept_aliases
from mscclpp._env import env
from mscclpp._errors import Error, ErrorCode, engine_errors, invalid, translate_error
from mscclpp._span import Span, span_of, writable_span_of
from ringfold import _native
from ringfold._error import GroupError

# The default timeout for all ranks to connect.
CONNECT_SECONDS = 30.0
# The timeout of an operation. A dead rank is noticed at once.
OPERATION_SECONDS = 1800.0
# How long process exit waits for what is still to be sent.
EXIT_SECONDS = 10.0
# The same if a receive is pending that will never end.
EXIT_SECONDS_PENDING = 1.0
# Longer than any program runs.
FOREVER_SECONDS = 10 * 365 * 86400.0
# Up to this size a send does not wait for its receiver.
EAGER_BYTES_MAX = 64 << 10
# Tags from here on belong to the mailbox.
TAGS = 1 << 30

_U8, _SUM = 0, 0
_KIND = "mscclpp1"


class _Listener:
    """An open listener. Unlike the native one, weak references to it are possible."""

    def __init__(self) -> None:
        with engine_errors():
            self.native = _native.BootstrapListener()


class UniqueId(bytes):
    """The address of rank 0, as bytes that can be sent, pickled and compared.

    It contains a secret: any process that has it can join. The bootstrap that made it, or this object, keeps the listener open.
    """

    _listener: _Listener | None = None

    def __reduce__(self) -> tuple[type[UniqueId], tuple[bytes]]:
        # Without the listener, which stays in its process.
        return UniqueId, (bytes(self),)

    def __repr__(self) -> str:
        return f"UniqueId({hashlib.sha256(self).hexdigest()[:16]})"


# The listeners of this process by id: for ids that were pickled.
_listeners: weakref.WeakValueDictionary[bytes, _Listener] = weakref.WeakValueDictionary()
_groups: weakref.WeakSet[TcpBootstrap] = weakref.WeakSet()


class Bootstrap:
    """The base class of bootstraps."""


class TcpBootstrap(Bootstrap):
    """A bootstrap over TCP.

        bootstrap = TcpBootstrap.create(rank, n)
        bootstrap.initialize("eth0:10.0.0.1:50000")          # or "10.0.0.1:50000", or a unique id

    Rank 0 listens there; the others retry until it does. Ctrl-C ends calls that wait.
    """

    def __init__(self, rank: int, n_ranks: int) -> None:
        if n_ranks < 1 or not 0 <= rank < n_ranks:
            raise invalid(f"invalid rank: rank {rank} is not in a world of {n_ranks}")
        self._rank = int(rank)
        self._n_ranks = int(n_ranks)
        self._n_ranks_per_node = 0
        self._group: _native.Group | None = None
        self._listener: _Listener | None = None
        # The messages of this rank to itself.
        self._own: defaultdict[int, deque[bytes]] = defaultdict(deque)
        self._changed = threading.Condition()
        self.records: object = None
        """The shared state of its mailboxes."""
        self.receiving: weakref.WeakSet[Receiving] = weakref.WeakSet()
        """The receives that have not ended."""

    @classmethod
    def create(cls, rank: int, n_ranks: int) -> Self:
        """A bootstrap that is not connected yet."""
        return cls(rank, n_ranks)

    def create_unique_id(self) -> UniqueId:
        """Opens a listener and returns its id. Rank 0 calls it, and passes the id to the others."""
        listener = _Listener()
        made = UniqueId(f"{_KIND}:{self._rank}:{listener.native.announcement}".encode())
        made._listener = self._listener = listener
        _listeners[bytes(made)] = listener
        return made

    def get_unique_id(self) -> UniqueId:
        """Another name of :meth:`create_unique_id`."""
        return self.create_unique_id()

    @accept_aliases(unique_id="at", if_ip_port_trio="at", ifIpPortTrio="at")
    def initialize(self, at: UniqueId | bytes | str, timeout_sec: float = CONNECT_SECONDS) -> None:
        """Connects all ranks: by a unique id, or at ``"interface:host:port"`` or ``"host:port"``, where rank 0 listens.

        Raises an :class:`Error` with ``ErrorCode.Timeout`` if a rank is missing at the timeout.
        """
        if self._group is not None:
            raise invalid("this bootstrap is initialised already")
        started = time.monotonic()
        try:
            self._group = _native.Group.connect(
                rank=self._rank,
                world=self._n_ranks,
                name="mscclpp",
                at=self._bootstrap_of(at),
                timeout=OPERATION_SECONDS,
                connect_timeout=float(timeout_sec),
            )
        except GroupError as error:
            is_timeout = time.monotonic() - started >= 0.9 * timeout_sec
            if error.kind == "bootstrap" and not is_timeout:
                raise Error(ErrorCode.RemoteError, str(error)) from None
            raise translate_error(error) from None
        _groups.add(self)
        # The listener is no longer needed.
        self._listener = None
        hosts = self.all_gather(_host())
        self._n_ranks_per_node = hosts.count(hosts[self._rank])

    def get_rank(self) -> int:
        """This rank."""
        return self._rank

    def get_n_ranks(self) -> int:
        """The number of ranks."""
        return self._n_ranks

    def get_n_ranks_per_node(self) -> int:
        """The number of ranks on this rank's host. Known once they are connected."""
        self._require()
        return self._n_ranks_per_node

    def barrier(self) -> None:
        """Waits until all ranks have called it."""
        with engine_errors():
            self._run("barrier", -1, 0, [], [])

    def all_gather(self, data: Any, size: int | None = None) -> Any:
        """Gathers data of all ranks.

        With ``bytes``, whose lengths may differ, returns a list of all ranks' bytes. An array has an equal part for each rank: this
        rank fills in its own, and the others are written. An address and the size of a part work like an array.
        """
        if isinstance(data, bytes):
            return self._gather_bytes(data)
        if isinstance(data, int):
            if size is None or size < 0:
                raise invalid("all_gather of an address needs the size of a rank's part")
            whole = Span(data, size * self._n_ranks, None)
        else:
            whole = writable_span_of(data, "data")
        if whole.nbytes % self._n_ranks:
            raise invalid(f"invalid size of data: {whole.nbytes} bytes are not {self._n_ranks} equal parts")
        _require_host(whole)
        part = whole.nbytes // self._n_ranks
        own = ctypes.create_string_buffer(max(part, 1))
        ctypes.memmove(own, whole.address + part * self._rank, part)
        with engine_errors():
            self._run("all_gather", -1, 0, [(ctypes.addressof(own), part)], [(whole.address, whole.nbytes)])
        return data

    def send(self, data: Any, *to: int, peer: int | None = None, tag: int | None = None) -> None:
        """Sends bytes: ``send(array, peer, tag)`` or ``send(address, size, peer, tag)``.

        Up to 64 KiB it does not wait for the receiver, and the bytes arrive even if this process ends.
        """
        span, peer, tag = _transfer("send", span_of, data, to, peer, tag)
        self.send_tagged(span, peer, _tag(tag))

    def recv(self, data: Any, *source: int, peer: int | None = None, tag: int | None = None) -> None:
        """Receives as many bytes as were sent: ``recv(array, peer, tag)`` or ``recv(address, size, peer, tag)``."""
        span, peer, tag = _transfer("recv", writable_span_of, data, source, peer, tag)
        self.receive_tagged(span, peer, _tag(tag))

    # --- internal --------------------------------------------------------------------------------------------------

    @property
    def native(self) -> _native.Group:
        """The engine's group."""
        return self._require()

    def send_tagged(self, span: Span, peer: int, tag: int) -> None:
        """Sends with a tag of the engine."""
        if peer == self._rank:
            with self._changed:
                self._own[tag].append(ctypes.string_at(span.address, span.nbytes) if span.nbytes else b"")
                self._changed.notify_all()
            return
        with engine_errors():
            if span.nbytes > EAGER_BYTES_MAX:
                self._run("send", peer, tag, [(span.address, span.nbytes)], [])
                return
            # A copy: the caller may change its bytes at once.
            copy = ctypes.create_string_buffer(max(span.nbytes, 1))
            ctypes.memmove(copy, span.address, span.nbytes)
            spans = [(ctypes.addressof(copy), span.nbytes)]
            self._require().submit("send", _U8, _SUM, peer, None, None, spans, [], None, tag, copy)

    def receive_tagged(self, span: Span, peer: int, tag: int, timeout: float | None = None) -> None:
        """Receives with a tag of the engine."""
        if peer == self._rank:
            with self._changed:
                if not self._changed.wait_for(lambda: self._own[tag], timeout or OPERATION_SECONDS):
                    raise Error(
                        ErrorCode.Timeout, f"timed out waiting for a send of this rank to itself, tag {tag}"
                    )
                data = self._own[tag].popleft()
            if len(data) != span.nbytes:
                raise invalid(
                    f"sizes differ: this rank sent itself {len(data)} bytes, but receives {span.nbytes}"
                )
            ctypes.memmove(span.address, data, len(data))
            return
        with engine_errors():
            self._run("recv", peer, tag, [], [(span.address, span.nbytes)], timeout)

    def begin_receive(self, span: Span, peer: int, tag: int) -> Receiving:
        """Starts a receive with a tag of the engine, without a timeout."""
        if peer == self._rank:
            return _OwnReceiving(self, span, tag)
        spans = [(span.address, span.nbytes)]
        with engine_errors():
            work = self._require().submit(
                "recv", _U8, _SUM, peer, None, None, [], spans, FOREVER_SECONDS, tag, span.keep
            )
        return _PeerReceiving(self, work)

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        lengths = (ctypes.c_uint64 * self._n_ranks)()
        lengths[self._rank] = len(data)
        self.all_gather(lengths)
        counts = list(lengths)
        own = ctypes.create_string_buffer(data, max(len(data), 1))
        whole = ctypes.create_string_buffer(max(sum(counts), 1))
        with engine_errors():
            inputs, outputs = [(ctypes.addressof(own), len(data))], [(ctypes.addressof(whole), sum(counts))]
            self._run("all_gather_v", -1, 0, inputs, outputs, counts=counts)
        parts, at = [], 0
        for count in counts:
            parts.append(whole.raw[at : at + count])
            at += count
        return parts

    def _run(
        self,
        op: str,
        peer: int,
        tag: int,
        inputs: list[tuple[int, int]],
        outputs: list[tuple[int, int]],
        timeout: float | None = None,
        counts: list[int] | None = None,
    ) -> None:
        self._require().run(op, _U8, _SUM, peer, counts, None, inputs, outputs, timeout, tag)

    def _require(self) -> _native.Group:
        if self._group is None:
            raise invalid("this bootstrap is not initialised: call initialize() first")
        return self._group

    def _bootstrap_of(
        self, at: UniqueId | bytes | str
    ) -> _native.BootstrapListener | str | tuple[str, int] | None:
        if isinstance(at, str) and not at.startswith(f"{_KIND}:"):
            return _address(at)
        if not isinstance(at, (str, bytes, bytearray)):
            raise invalid(
                f"invalid address of type {type(at).__name__}: must be a unique id or interface:host:port"
            )
        given = at.encode() if isinstance(at, str) else bytes(at)
        try:
            kind, maker, announcement = given.decode().split(":", 2)
            maker_rank = int(maker)
        except ValueError:
            kind = ""
        if kind != _KIND:
            raise invalid("invalid unique id: use one of create_unique_id()")
        if self._n_ranks == 1:
            return None
        if maker_rank != 0:
            raise invalid(
                f"invalid unique id, made by rank {maker_rank}: rank 0 has to make it, because the others connect to it"
            )
        if self._rank != 0:
            return announcement
        listener = (at._listener if isinstance(at, UniqueId) else None) or _listeners.get(given)
        if listener is None:
            raise invalid(
                "invalid unique id on rank 0: this process did not make it, or has dropped the bootstrap that made it"
            )
        return listener.native


class Receiving(Protocol):
    """A started receive."""

    def wait(self, seconds: float) -> bool:
        """Waits up to so many seconds. True if it has ended."""


class _PeerReceiving:
    """A receive from another rank."""

    def __init__(self, bootstrap: TcpBootstrap, work: _native.GroupWork) -> None:
        self._bootstrap = bootstrap
        self._work = work
        bootstrap.receiving.add(self)

    def wait(self, seconds: float) -> bool:
        with engine_errors():
            has_ended = self._work.wait(seconds)
        if has_ended:
            self._bootstrap.receiving.discard(self)
        return has_ended


class _OwnReceiving:
    """A receive from this rank itself."""

    def __init__(self, bootstrap: TcpBootstrap, span: Span, tag: int) -> None:
        self._bootstrap = bootstrap
        self._span = span
        self._tag = tag

    def wait(self, seconds: float) -> bool:
        try:
            # Not 0, which would be the default timeout.
            self._bootstrap.receive_tagged(
                self._span, self._bootstrap.get_rank(), self._tag, max(seconds, 1e-6)
            )
        except Error as error:
            if error.code is ErrorCode.Timeout:
                return False
            raise
        return True


def _transfer(
    op: str, find: Any, data: Any, rest: tuple[int, ...], peer: int | None, tag: int | None
) -> tuple[Span, int, int]:
    """The arguments of a transfer in one of its two forms."""
    numbers = list(rest)
    if isinstance(data, int):
        if not numbers:
            raise invalid(f"{op}(address, size, peer, tag) needs the size")
        span = Span(data, numbers.pop(0), None)
    else:
        span = find(data, "data")
        _require_host(span)
    peer = numbers.pop(0) if peer is None and numbers else peer
    tag = numbers.pop(0) if tag is None and numbers else tag
    if peer is None or numbers:
        raise TypeError(
            f"invalid arguments: must be {op}(array, peer, tag) or {op}(address, size, peer, tag)"
        )
    return span, int(peer), int(tag or 0)


def _require_host(span: Span) -> None:
    if span.is_device:
        raise invalid("unsupported GPU memory: a bootstrap moves only host memory")


def _tag(tag: int) -> int:
    if not 0 <= tag < TAGS:
        raise invalid(f"tag {tag} is out of range: tags are 0 to {TAGS - 1}")
    return tag


def _address(text: str) -> tuple[str, int]:
    """The host and the port of ``interface:host:port`` or ``host:port``."""
    rest, _, port = text.strip().rpartition(":")
    interface, host = "", rest
    if ":" in rest and not rest.startswith("["):
        interface, _, host = rest.partition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise invalid(f"invalid address {text!r}: must be interface:host:port or host:port")
    if interface and interface not in (names := [name for _, name in socket.if_nameindex()]):
        raise invalid(f"no network interface {interface!r} on this host: must be one of {', '.join(names)}")
    return host, _beside_torchrun(int(port))


def _beside_torchrun(port: int) -> int:
    """The port, or the next one if torchrun's agent listens there."""
    is_taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    if not is_taken or os.environ.get("MASTER_PORT") != str(port):
        return port
    return port + 1 if port + 1 < 1 << 16 else port - 1


def _host() -> bytes:
    """A digest that identifies this host."""
    name = env().hostid
    if not name:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                name = file.read().strip()
        except OSError:
            pass
        name += socket.gethostname()
    return hashlib.sha256(name.encode()).digest()


# Registered first, so it runs last: then calls of daemon threads no longer return to the interpreter.
atexit.register(_native.begin_interpreter_exit)


@atexit.register
def _finish() -> None:
    """Waits until what was sent has left this process."""
    seconds = EXIT_SECONDS
    for bootstrap in list(_groups):
        if bootstrap._group is not None:
            bootstrap._group.retire()
        if bootstrap.receiving:
            # Its sender may never come.
            seconds = EXIT_SECONDS_PENDING
    _native.finish_retired(seconds)


__all__ = ["Bootstrap", "TcpBootstrap", "UniqueId"]
