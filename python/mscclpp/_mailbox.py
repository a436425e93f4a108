"""Records of memories, connections and semaphores that ranks exchange. They match in the order of the calls."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import defaultdict
from typing import NamedTuple

from mscclpp._bootstrap import OPERATION_SECONDS, TAGS, Receiving, TcpBootstrap
from mscclpp._errors import Error, ErrorCode, invalid
from mscclpp._span import Span

# Longer records are invalid.
RECORD_BYTES_MAX = 1 << 20
LENGTH_BYTES = 8
_KINDS = {"memory": b"M", "connection": b"C", "semaphore": b"S"}
_CALLS = {b"M": "send_memory", b"C": "connect", b"S": "build_semaphore"}


class Mailbox:
    """The records of one bootstrap, shared by all communicators on it.

    A record begins with its kind, so that the error for calls that do not match can name the other call.
    """

    def __init__(self, bootstrap: TcpBootstrap) -> None:
        self._bootstrap = bootstrap
        with _making:
            if bootstrap.records is None:
                bootstrap.records = _SharedState()
            state = bootstrap.records
        assert isinstance(state, _SharedState)
        self._lock = state.lock
        self._expected = state.expected
        self._queues = state.queues

    def send(self, peer: int, tag: int, kind: str, record: bytes) -> None:
        """Sends a record, and does not wait for its receiver."""
        tag = self._check(peer, tag)
        whole = _KINDS[kind] + record
        # Locked, so that no other record of this tag comes between length and record.
        with self._lock:
            for part in (len(whole).to_bytes(LENGTH_BYTES, "little"), whole):
                held = ctypes.create_string_buffer(part, len(part))
                self._bootstrap.send_tagged(Span(ctypes.addressof(held), len(part), held), peer, tag)

    def expect(self, peer: int, tag: int) -> int:
        """Reserves the next sequence number of a rank's records with a tag."""
        self._check(peer, tag)
        with self._lock:
            number = self._expected[peer, tag]
            self._expected[peer, tag] += 1
            return number

    def receive(self, peer: int, tag: int, number: int, kind: str, timeout: float | None) -> bytes:
        """Waits for the record with a sequence number."""
        deadline = time.monotonic() + (OPERATION_SECONDS if timeout is None else max(timeout, 0.0))
        with self._lock:
            queue = self._queues[peer, tag]
        if not queue.lock.acquire(timeout=deadline - time.monotonic()):
            raise _timeout_error(peer, tag)
        try:
            while number >= queue.count:
                queue.records[queue.count] = self._next(queue, peer, tag, deadline)
                queue.count += 1
            record = queue.records[number]
        finally:
            queue.lock.release()
        if record[:1] != _KINDS[kind]:
            there, here = _CALLS.get(record[:1], "something unknown"), _CALLS[_KINDS[kind]]
            raise invalid(
                f"calls do not match: rank {peer} called {there}, but this rank waits in {here.replace('send', 'recv')} (tag {tag}, "
                f"call {number + 1} with it)"
            )
        return record[1:]

    def done(self, peer: int, tag: int, number: int) -> None:
        """Drops a used record."""
        with self._lock:
            self._queues[peer, tag].records.pop(number, None)

    def _next(self, queue: _RecordQueue, peer: int, tag: int, deadline: float) -> bytes:
        """The next record of a queue; its length comes first. After a timeout, the next call goes on with it."""
        while True:
            part = queue.pending
            if part is None:
                part = queue.pending = self._begin(peer, tag, LENGTH_BYTES, is_length=True)
            if not part.work.wait(max(deadline - time.monotonic(), 0.0)):
                raise _timeout_error(peer, tag)
            queue.pending = None
            if not part.is_length:
                return bytes(part.buffer)
            nbytes = int.from_bytes(part.buffer, "little")
            if not 0 < nbytes <= RECORD_BYTES_MAX:
                raise Error(ErrorCode.RemoteError, f"invalid record from rank {peer}: {nbytes} bytes")
            queue.pending = self._begin(peer, tag, nbytes, is_length=False)

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


class _SharedState:
    """The record queues of a bootstrap. It belongs to the bootstrap and does not refer to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.expected: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.queues: defaultdict[tuple[int, int], _RecordQueue] = defaultdict(_RecordQueue)


_making = threading.Lock()


class _RecordQueue:
    """The records of one rank with one tag."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.records: dict[int, bytes] = {}
        self.pending: _Part | None = None


class _Part(NamedTuple):
    """A pending receive of a record, or of its length."""

    work: Receiving
    buffer: ctypes.Array[ctypes.c_ubyte]
    is_length: bool


def _timeout_error(peer: int, tag: int) -> Error:
    return Error(ErrorCode.Timeout, f"timed out: rank {peer} has not made its call with tag {tag}")
