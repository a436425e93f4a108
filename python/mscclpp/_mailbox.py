"""Records that ranks exchange to make memories, connections and semaphores known: matched in the order of the calls."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict
from typing import NamedTuple

from mscclpp._bootstrap import OPERATION_SECONDS, TAGS, Receiving, TcpBootstrap
from mscclpp._errors import Error, ErrorCode, invalid
from mscclpp._span import Span

# A record longer than this was not written by us.
RECORD_BYTES_MAX = 1 << 20
LENGTH_BYTES = 8
_KINDS = {"memory": b"M", "connection": b"C", "semaphore": b"S"}
_CALLS = {b"M": "send_memory", b"C": "connect", b"S": "build_semaphore"}


class Mailbox:
    """The records of one bootstrap. All communicators on it share their lines.

    A record begins with its kind, so that ranks whose calls do not fit each other are told what was called over there.
    """

    def __init__(self, bootstrap: TcpBootstrap) -> None:
        self._bootstrap = bootstrap
        with _making:
            if bootstrap.records is None:
                bootstrap.records = _Lines()
            lines = bootstrap.records
        assert isinstance(lines, _Lines)
        self._lock = lines.lock
        self._expected = lines.expected
        self._lines = lines.lines

    def send(self, peer: int, tag: int, kind: str, record: bytes) -> None:
        """Sends a record, and does not wait for its receiver."""
        tag = self._check(peer, tag)
        whole = _KINDS[kind] + record
        # One after the other on this tag: no other thread's record comes between length and record.
        with self._lock:
            for part in (len(whole).to_bytes(LENGTH_BYTES, "little"), whole):
                held = ctypes.create_string_buffer(part, len(part))
                self._bootstrap.send_tagged(Span(ctypes.addressof(held), len(part), held), peer, tag)

    def expect(self, peer: int, tag: int) -> int:
        """Takes the next place in the line of a rank's records with a tag."""
        self._check(peer, tag)
        with self._lock:
            place = self._expected[peer, tag]
            self._expected[peer, tag] += 1
            return place

    def receive(self, peer: int, tag: int, place: int, kind: str, timeout: float | None) -> bytes:
        """Waits for the record at a place in the line."""
        until = time.monotonic() + (OPERATION_SECONDS if timeout is None else max(timeout, 0.0))
        with self._lock:
            line = self._lines[peer, tag]
        if not line.lock.acquire(timeout=until - time.monotonic()):
            raise _late(peer, tag)
        try:
            while place >= line.count:
                line.records[line.count] = self._next(line, peer, tag, until)
                line.count += 1
            record = line.records[place]
        finally:
            line.lock.release()
        if record[:1] != _KINDS[kind]:
            there, here = _CALLS.get(record[:1], "something unknown"), _CALLS[_KINDS[kind]]
            raise invalid(
                f"rank {peer} has called {there} where this rank waits for {here.replace('send', 'recv')} (tag {tag}, call "
                f"{place + 1} of this rank with it): calls are matched in their order"
            )
        return record[1:]

    def done(self, peer: int, tag: int, place: int) -> None:
        """A record was used, and need not be kept."""
        with self._lock:
            self._lines[peer, tag].records.pop(place, None)

    def _next(self, line: _Line, peer: int, tag: int, until: float) -> bytes:
        """The next record of a line, whose length comes first. What has come by then is kept for the next one who asks."""
        while True:
            part = line.coming
            if part is None:
                part = line.coming = self._begin(peer, tag, LENGTH_BYTES, is_length=True)
            if not part.work.wait(max(until - time.monotonic(), 0.0)):
                raise _late(peer, tag)
            line.coming = None
            if not part.is_length:
                return bytes(part.buffer)
            nbytes = int.from_bytes(part.buffer, "little")
            if not 0 < nbytes <= RECORD_BYTES_MAX:
                raise Error(
                    ErrorCode.RemoteError, f"rank {peer} has sent a record of {nbytes} bytes, which is none"
                )
            line.coming = self._begin(peer, tag, nbytes, is_length=False)

    def _begin(self, peer: int, tag: int, nbytes: int, is_length: bool) -> _Part:
        buffer = (ctypes.c_ubyte * nbytes)()
        where = Span(ctypes.addressof(buffer), nbytes, buffer)
        return _Part(self._bootstrap.begin_receive(where, peer, TAGS + tag), buffer, is_length)

    def _check(self, peer: int, tag: int) -> int:
        if not 0 <= peer < self._bootstrap.get_n_ranks():
            raise invalid(f"rank {peer} is out of range: ranks are 0 to {self._bootstrap.get_n_ranks() - 1}")
        if not 0 <= tag < TAGS:
            raise invalid(f"tag {tag} is out of range: tags are 0 to {TAGS - 1}")
        return TAGS + tag


class _Lines:
    """What is underway on a bootstrap; it belongs to that, and does not refer to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.expected: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.lines: defaultdict[tuple[int, int], _Line] = defaultdict(_Line)


_making = threading.Lock()


class _Line:
    """What one rank has sent with one tag."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.records: dict[int, bytes] = {}
        self.coming: _Part | None = None


class _Part(NamedTuple):
    """Half of a record, on its way: its length, or the record."""

    work: Receiving
    buffer: ctypes.Array[ctypes.c_ubyte]
    is_length: bool


def _late(peer: int, tag: int) -> Error:
    return Error(ErrorCode.Timeout, f"rank {peer} has not made its call with tag {tag} in time")
