"""Records that ranks exchange to make memories, connections and semaphores known: matched in the order of the calls."""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict

from mscclpp._bootstrap import TAGS, TcpBootstrap
from mscclpp._errors import Error, ErrorCode, invalid
from mscclpp._span import Span

# A record longer than this was not written by us.
RECORD_BYTES_MAX = 1 << 20
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
            for part in (len(whole).to_bytes(8, "little"), whole):
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
        with self._lock:
            line = self._lines[peer, tag]
        if not line.lock.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            raise Error(ErrorCode.Timeout, f"rank {peer} has not sent a record with tag {tag} in time")
        try:
            while place >= line.count:
                line.records[line.count] = self._next(peer, TAGS + tag, timeout)
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

    def _next(self, peer: int, tag: int, timeout: float | None) -> bytes:
        length = ctypes.c_uint64()
        self._bootstrap.receive_tagged(Span(ctypes.addressof(length), 8, length), peer, tag, timeout)
        if not 0 < length.value <= RECORD_BYTES_MAX:
            raise Error(
                ErrorCode.RemoteError, f"rank {peer} has sent a record of {length.value} bytes, which is none"
            )
        record = ctypes.create_string_buffer(length.value)
        self._bootstrap.receive_tagged(
            Span(ctypes.addressof(record), length.value, record), peer, tag, timeout
        )
        return record.raw

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
