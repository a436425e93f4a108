"""Ends the process when an operation fails that no thread waits for.

Only communicators with ``abort_process_on_timeout_or_error`` are watched. One thread serves all of them. It looks at unfinished
operations a few times per second, and sleeps while there are none.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

# The pause between two looks.
_PAUSE_SECONDS = 0.25
# How many operations on a device are remembered, at most.
_DEVICE_OPS_MAX = 8192
# Failures that do not come from an operation, so they count only while one is under way.
_FROM_OUTSIDE = frozenset({"lost", "aborted"})

# Returns true when there is nothing more to watch.
Watch = Callable[[], bool]


class FailedOperation:
    """Called when an operation of a communicator has failed: runs the abort hooks, and ends the process."""

    __slots__ = ("_began", "_op", "comm")

    def __init__(self, comm: TorchComm, op: str, began: float) -> None:
        self.comm = comm
        self._op = op
        self._began = began

    def __call__(self, error: BaseException) -> None:
        waited = time.monotonic() - self._began
        end_process(self.comm, f"{self._op} of {_described(self.comm)} failed after {waited:.1f} s: {error}")


class FailedWindowOperation(FailedOperation):
    """The same for a window: a wait for a signal that times out does not fail the communicator."""

    __slots__ = ()

    def __call__(self, error: BaseException) -> None:
        if self.comm.is_aborted():
            super().__call__(error)


def watch_work(work: TorchWork) -> None:
    """Calls ``work._on_error`` if the work fails and no thread gets its error."""
    _watcher.add(partial(_is_settled, work))


def _is_settled(work: TorchWork) -> bool:
    pending, error = work._pending, work._error
    if pending is not None:
        if not pending.done():
            return False
        try:
            pending.wait(0.0)
        except Exception as failure:
            error = failure
    report = work._on_error
    if error is not None and isinstance(report, FailedOperation) and not _is_ended(report.comm):
        report(error)
    return True


def _is_ended(comm: TorchComm) -> bool:
    """Whether this rank has ended the communicator, so that failures are expected."""
    return comm._is_final or comm._was_aborted


class DeviceWatch:
    """The operations that a communicator has queued on its device: the host does not wait for them."""

    def __init__(self, comm: TorchComm) -> None:
        self._comm = weakref.ref(comm)
        self._issued: deque[tuple[str, float]] = deque(maxlen=_DEVICE_OPS_MAX)
        _watcher.add(self._is_over)

    def add(self, op: str, began: float) -> None:
        """Notes an operation that was queued."""
        self._issued.append((op, began))

    def _is_over(self) -> bool:
        comm, issued = self._comm(), self._issued
        if comm is None or _is_ended(comm):
            return True
        try:
            failure, unfinished = comm._backend.device_state()
        except Exception:
            # The device itself has failed, which every CUDA call of the program reports.
            return True
        if failure is None:
            # They run in the order in which they were queued, so the last ones are unfinished.
            while unfinished is not None and len(issued) > unfinished:
                issued.popleft()
            return False
        if issued:
            FailedOperation(comm, *issued[0])(failure)
        elif getattr(failure, "kind", None) not in _FROM_OUTSIDE:
            # The host does not see the operations of graphs.
            end_process(comm, f"{_described(comm)} failed: {failure}")
        return True


def _described(comm: TorchComm) -> str:
    return f"communicator {comm.get_name()!r}"


def end_process(comm: TorchComm, why: str) -> None:
    """Runs the abort hooks, prints why, and ends the process with SIGABRT."""
    comm._run_abort_hooks()
    if _ending.acquire(blocking=False):
        with contextlib.suppress(Exception):  # stderr may be closed
            print(f"torchcomms: ending this process: {why}", file=sys.stderr, flush=True)
    else:
        # Another thread does it.
        time.sleep(_PAUSE_SECONDS)
    os.abort()


_ending = threading.Lock()


class Watcher:
    """The thread, which is started with the first watch."""

    def __init__(self) -> None:
        self._watches: deque[Watch] = deque()
        self._is_needed = threading.Event()
        self._is_exiting = False
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        if self._is_exiting:
            return
        self._watches.append(watch)
        if not self._is_needed.is_set():
            self._begin()

    def stop(self) -> None:
        """Watches nothing more. At exit, operations may be cut off."""
        self._is_exiting = True

    def reset(self) -> None:
        """Starts anew in a forked child, which has neither the thread nor the communicators."""
        self._watches, self._thread = deque(), None
        self._is_needed, self._start = threading.Event(), threading.Lock()

    def _begin(self) -> None:
        with self._start:
            if self._thread is None:
                # A daemon: it does not keep the process alive.
                self._thread = threading.Thread(target=self._run, name="torchcomms-watcher", daemon=True)
                self._thread.start()
                # Registered last, so it runs before the exit functions of the engine.
                atexit.register(self.stop)
            self._is_needed.set()

    def _run(self) -> None:
        while not self._is_exiting:
            self._is_needed.wait()
            time.sleep(_PAUSE_SECONDS)
            self._look()
            if not self._watches:
                self._is_needed.clear()
                # One may have been added meanwhile.
                if self._watches:
                    self._is_needed.set()

    def _look(self) -> None:
        for _ in range(len(self._watches)):
            if self._is_exiting:
                return
            # Only this thread removes any.
            watch = self._watches.popleft()
            try:
                if not watch():
                    self._watches.append(watch)
            except Exception:
                logging.getLogger("torchcomms").exception("watching an operation failed")


_watcher = Watcher()
os.register_at_fork(after_in_child=_watcher.reset)
