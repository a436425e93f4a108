"""How ranks find each other, and what they tell each other before there are connections."""

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

from mscclpp._env import env
from mscclpp._errors import Error, ErrorCode, invalid, told, translated
from mscclpp._span import Span, span_of, written_span
from mscclpp._spelling import also
from ringfold import _native
from ringfold._error import GroupError

# How long ranks may meet, unless said otherwise.
MEETING_SECONDS = 30.0
# How long an operation waits for ranks that live. A rank that died is noticed at once.
OPERATION_SECONDS = 1800.0
# How long the end of the process waits for what is still to be sent.
EXIT_SECONDS = 10.0
# And if something was waited for that has not come.
EXIT_SECONDS_OWED = 1.0
# Longer than any program runs.
FOREVER_SECONDS = 10 * 365 * 86400.0
# What is sent without waiting for its receiver.
EAGER_BYTES_MAX = 64 << 10
# Tags from here on are those of records; see the mailbox.
TAGS = 1 << 30

_U8, _SUM = 0, 0
_KIND = "mscclpp1"


class _Place:
    """An open meeting place, which other objects may refer to weakly."""

    def __init__(self) -> None:
        with told():
            self.native = _native.MeetingPlace()


class UniqueId(bytes):
    """Where ranks meet, as bytes that can be sent, pickled and compared. There is a secret in it: whoever has it can take
    part. The bootstrap that made it, or this very object, keeps the place open.
    """

    _place: _Place | None = None

    def __reduce__(self) -> tuple[type[UniqueId], tuple[bytes]]:
        # The open place stays where it is.
        return UniqueId, (bytes(self),)

    def __repr__(self) -> str:
        return f"UniqueId({hashlib.sha256(self).hexdigest()[:16]})"


# Places of this process by their ids: an id that has been pickled is found again.
_places: weakref.WeakValueDictionary[bytes, _Place] = weakref.WeakValueDictionary()
_groups: weakref.WeakSet[TcpBootstrap] = weakref.WeakSet()


class Bootstrap:
    """What a :class:`mscclpp.Communicator` needs of the ranks' first meeting."""


class TcpBootstrap(Bootstrap):
    """A rank's part in a meeting over TCP.

        bootstrap = TcpBootstrap.create(rank, n)
        bootstrap.initialize("eth0:10.0.0.1:50000")          # or "10.0.0.1:50000", or a unique id

    Rank 0 listens there; the others try until it does. Calls that wait let other threads run and heed Ctrl-C.
    """

    def __init__(self, rank: int, n_ranks: int) -> None:
        if n_ranks < 1 or not 0 <= rank < n_ranks:
            raise invalid(f"rank {rank} is not in a world of {n_ranks}")
        self._rank = int(rank)
        self._n_ranks = int(n_ranks)
        self._n_ranks_per_node = 0
        self._group: _native.Group | None = None
        self._place: _Place | None = None
        # What this rank has sent to itself.
        self._own: defaultdict[int, deque[bytes]] = defaultdict(deque)
        self._news = threading.Condition()
        self.records: object = None
        """What the mailboxes on it share."""
        self.receiving: weakref.WeakSet[Receiving] = weakref.WeakSet()
        """What was begun, and has not come."""

    @classmethod
    def create(cls, rank: int, n_ranks: int) -> Self:
        """A rank that has not met the others yet."""
        return cls(rank, n_ranks)

    def create_unique_id(self) -> UniqueId:
        """Opens a place to meet. Rank 0 makes the id and gives it to the others, by whatever way there is."""
        place = _Place()
        made = UniqueId(f"{_KIND}:{self._rank}:{place.native.announcement}".encode())
        made._place = self._place = place
        _places[bytes(made)] = place
        return made

    def get_unique_id(self) -> UniqueId:
        """Another name of :meth:`create_unique_id`."""
        return self.create_unique_id()

    @also(unique_id="at", if_ip_port_trio="at", ifIpPortTrio="at")
    def initialize(self, at: UniqueId | bytes | str, timeout_sec: float = MEETING_SECONDS) -> None:
        """Meets the other ranks: at the place of a unique id, or at ``"interface:host:port"`` or ``"host:port"``, where
        rank 0 listens. If they have not all come in time, that is an :class:`Error` with ``ErrorCode.Timeout``.
        """
        if self._group is not None:
            raise invalid("this bootstrap is initialised already")
        began = time.monotonic()
        try:
            self._group = _native.Group.connect(
                rank=self._rank,
                world=self._n_ranks,
                name="mscclpp",
                at=self._meeting(at),
                timeout=OPERATION_SECONDS,
                patience=float(timeout_sec),
            )
        except GroupError as error:
            is_late = time.monotonic() - began >= 0.9 * timeout_sec
            if error.kind == "meeting" and not is_late:
                raise Error(ErrorCode.RemoteError, str(error)) from None
            raise translated(error) from None
        _groups.add(self)
        # The place has served.
        self._place = None
        hosts = self.all_gather(_host())
        self._n_ranks_per_node = hosts.count(hosts[self._rank])

    def get_rank(self) -> int:
        """This rank."""
        return self._rank

    def get_n_ranks(self) -> int:
        """How many ranks there are."""
        return self._n_ranks

    def get_n_ranks_per_node(self) -> int:
        """How many ranks are on this rank's host. Known once they have met."""
        self._require()
        return self._n_ranks_per_node

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        with told():
            self._run("barrier", -1, 0, [], [])

    def all_gather(self, data: Any, size: int | None = None) -> Any:
        """Gives every rank what each one brought.

        ``bytes`` (lengths may differ) come back as a list of all ranks' bytes. An array is of as many equal parts as there are
        ranks: this rank's own is filled in, the others' are written. An address and the size of a part say the same.
        """
        if isinstance(data, bytes):
            return self._gather_bytes(data)
        if isinstance(data, int):
            if size is None or size < 0:
                raise invalid("all_gather of memory by its address needs the size of a rank's part")
            whole = Span(data, size * self._n_ranks, None)
        else:
            whole = written_span(data, "data")
        if whole.nbytes % self._n_ranks:
            raise invalid(f"{whole.nbytes} bytes are not {self._n_ranks} equal parts")
        _require_host(whole)
        part = whole.nbytes // self._n_ranks
        own = ctypes.create_string_buffer(max(part, 1))
        ctypes.memmove(own, whole.address + part * self._rank, part)
        with told():
            self._run("all_gather", -1, 0, [(ctypes.addressof(own), part)], [(whole.address, whole.nbytes)])
        return data

    def send(self, data: Any, *to: int, peer: int | None = None, tag: int | None = None) -> None:
        """Sends bytes: ``send(array, peer, tag)``, or ``send(address, size, peer, tag)``. What is not large is on its way when
        this returns, even if this process ends then.
        """
        what, peer, tag = _transfer("send", span_of, data, to, peer, tag)
        self.send_tagged(what, peer, _tag(tag))

    def recv(self, data: Any, *source: int, peer: int | None = None, tag: int | None = None) -> None:
        """Waits for bytes: ``recv(array, peer, tag)``, or ``recv(address, size, peer, tag)``. They are as many as were sent."""
        what, peer, tag = _transfer("recv", written_span, data, source, peer, tag)
        self.receive_tagged(what, peer, _tag(tag))

    # --- for the package's own use ---------------------------------------------------------------------------------

    @property
    def native(self) -> _native.Group:
        """The group of the engine."""
        return self._require()

    def send_tagged(self, what: Span, peer: int, tag: int) -> None:
        """Sends with a tag of the engine."""
        if peer == self._rank:
            with self._news:
                self._own[tag].append(ctypes.string_at(what.address, what.nbytes) if what.nbytes else b"")
                self._news.notify_all()
            return
        with told():
            if what.nbytes > EAGER_BYTES_MAX:
                self._run("send", peer, tag, [(what.address, what.nbytes)], [])
                return
            # A copy: the caller may change its bytes at once.
            copy = ctypes.create_string_buffer(max(what.nbytes, 1))
            ctypes.memmove(copy, what.address, what.nbytes)
            spans = [(ctypes.addressof(copy), what.nbytes)]
            self._require().submit("send", _U8, _SUM, peer, None, None, spans, [], None, tag, copy)

    def receive_tagged(self, what: Span, peer: int, tag: int, timeout: float | None = None) -> None:
        """Receives with a tag of the engine."""
        if peer == self._rank:
            with self._news:
                if not self._news.wait_for(lambda: self._own[tag], timeout or OPERATION_SECONDS):
                    raise Error(ErrorCode.Timeout, "this rank has not sent to itself what it waits for")
                data = self._own[tag].popleft()
            if len(data) != what.nbytes:
                raise invalid(f"this rank has sent itself {len(data)} bytes, and receives {what.nbytes}")
            ctypes.memmove(what.address, data, len(data))
            return
        with told():
            self._run("recv", peer, tag, [], [(what.address, what.nbytes)], timeout)

    def begin_receive(self, what: Span, peer: int, tag: int) -> Receiving:
        """Receives with a tag of the engine, and is waited for as long as one likes: that it takes long is no failure."""
        if peer == self._rank:
            return _OwnReceiving(self, what, tag)
        spans = [(what.address, what.nbytes)]
        with told():
            work = self._require().submit(
                "recv", _U8, _SUM, peer, None, None, [], spans, FOREVER_SECONDS, tag, what.keep
            )
        return _PeerReceiving(self, work)

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        lengths = (ctypes.c_uint64 * self._n_ranks)()
        lengths[self._rank] = len(data)
        self.all_gather(lengths)
        counts = list(lengths)
        own = ctypes.create_string_buffer(data, max(len(data), 1))
        whole = ctypes.create_string_buffer(max(sum(counts), 1))
        with told():
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
            raise invalid("this bootstrap is not initialised: initialize() meets the other ranks")
        return self._group

    def _meeting(self, at: UniqueId | bytes | str) -> _native.MeetingPlace | str | tuple[str, int] | None:
        if isinstance(at, str) and not at.startswith(f"{_KIND}:"):
            return _address(at)
        if not isinstance(at, (str, bytes, bytearray)):
            raise invalid(f"ranks meet by a unique id or at interface:host:port, not by {type(at).__name__}")
        given = at.encode() if isinstance(at, str) else bytes(at)
        try:
            kind, maker, announcement = given.decode().split(":", 2)
            maker_rank = int(maker)
        except ValueError:
            kind = ""
        if kind != _KIND:
            raise invalid("that is no unique id: create_unique_id() makes one")
        if self._n_ranks == 1:
            return None
        if maker_rank != 0:
            raise invalid(
                f"the unique id was made by rank {maker_rank}: rank 0 has to make it, for the others come to it"
            )
        if self._rank != 0:
            return announcement
        place = (at._place if isinstance(at, UniqueId) else None) or _places.get(given)
        if place is None:
            raise invalid(
                "rank 0 has not made this unique id itself, or has let go of what made it: nobody listens there"
            )
        return place.native


class Receiving(Protocol):
    """A receive that was begun."""

    def wait(self, seconds: float) -> bool:
        """Whether it has come, or comes within a time."""


class _PeerReceiving:
    """From another rank."""

    def __init__(self, bootstrap: TcpBootstrap, work: _native.GroupWork) -> None:
        self._bootstrap = bootstrap
        self._work = work
        bootstrap.receiving.add(self)

    def wait(self, seconds: float) -> bool:
        with told():
            is_here = self._work.wait(seconds)
        if is_here:
            self._bootstrap.receiving.discard(self)
        return is_here


class _OwnReceiving:
    """From oneself."""

    def __init__(self, bootstrap: TcpBootstrap, what: Span, tag: int) -> None:
        self._bootstrap = bootstrap
        self._what = what
        self._tag = tag

    def wait(self, seconds: float) -> bool:
        try:
            # For the wait's shortest time, which is not the default one.
            self._bootstrap.receive_tagged(
                self._what, self._bootstrap.get_rank(), self._tag, max(seconds, 1e-6)
            )
        except Error as error:
            if error.code is ErrorCode.Timeout:
                return False
            raise
        return True


def _transfer(
    op: str, find: Any, data: Any, rest: tuple[int, ...], peer: int | None, tag: int | None
) -> tuple[Span, int, int]:
    """What a transfer was called with, in one of its two forms."""
    numbers = list(rest)
    if isinstance(data, int):
        if not numbers:
            raise invalid(f"{op}(address, size, peer, tag) needs the size")
        what = Span(data, numbers.pop(0), None)
    else:
        what = find(data, "data")
        _require_host(what)
    peer = numbers.pop(0) if peer is None and numbers else peer
    tag = numbers.pop(0) if tag is None and numbers else tag
    if peer is None or numbers:
        raise TypeError(f"{op}(array, peer, tag) or {op}(address, size, peer, tag)")
    return what, int(peer), int(tag or 0)


def _require_host(what: Span) -> None:
    if what.is_device:
        raise invalid("a bootstrap moves the host's memory, not a GPU's")


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
        raise invalid(f"{text!r} is no place to meet: interface:host:port or host:port is one")
    if interface and interface not in (names := [name for _, name in socket.if_nameindex()]):
        raise invalid(f"there is no network interface {interface!r} here; there are {', '.join(names)}")
    return host, _beside_torchrun(int(port))


def _beside_torchrun(port: int) -> int:
    """torchrun's agent listens at MASTER_PORT itself, and says so: whoever is sent there meets at the next port."""
    is_taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    if not is_taken or os.environ.get("MASTER_PORT") != str(port):
        return port
    return port + 1 if port + 1 < 1 << 16 else port - 1


def _host() -> bytes:
    """What ranks of one host have in common."""
    name = env().hostid
    if not name:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                name = file.read().strip()
        except OSError:
            pass
        name += socket.gethostname()
    return hashlib.sha256(name.encode()).digest()


# The last to run: whatever a daemon thread's call ends with from then on, there is no interpreter to come back to.
atexit.register(_native.interpreter_ends)


@atexit.register
def _finish() -> None:
    """What was sent is on its way before the process is gone."""
    seconds = EXIT_SECONDS
    for bootstrap in list(_groups):
        if bootstrap._group is not None:
            bootstrap._group.retire()
        if bootstrap.receiving:
            # Nobody waits for it any more.
            seconds = EXIT_SECONDS_OWED
    _native.finish_retired(seconds)


__all__ = ["Bootstrap", "TcpBootstrap", "UniqueId"]
