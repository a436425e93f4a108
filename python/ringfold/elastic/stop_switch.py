"""Stops a run early: by SIGTERM, Ctrl-C or the program."""

from __future__ import annotations

import _thread
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# A signal that comes sooner is the same one: a service manager and torchrun may both have sent it.
_SECOND_AFTER = 1.0


class Stopped(BaseException):
    """Unwinds a blocking call after SIGTERM, up to the end of the ``with`` block. It is not an ``Exception``, so that no
    ``except Exception`` catches it."""


class StopSignals:
    """The handlers of SIGTERM and Ctrl-C. The second signal ends the process at once, whatever it is stuck in."""

    def __init__(self, on_sigterm: Callable[[], None], *, ctrl_c: bool) -> None:
        self._on_sigterm, self._ctrl_c = on_sigterm, ctrl_c
        self._previous: dict[int, Any] = {}
        self._seen: set[int] = set()

    def install(self) -> None:
        """Handles the signals from now on, if this is the main thread. Own handlers of Ctrl-C stay."""
        if self._previous or threading.current_thread() is not threading.main_thread():
            return
        self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._handle)
        if self._ctrl_c and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle)

    def restore(self) -> None:
        """Restores the previous handlers."""
        while self._previous:
            number, handler = self._previous.popitem()
            # A handler that was not set from Python is None and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in self._seen:
            return
        self._seen.add(number)
        # Takes no lock of `threading`, which this thread may hold.
        _thread.start_new_thread(self._hand_over, (number,))
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        self._on_sigterm()

    def _hand_over(self, number: int) -> None:
        """The kernel handles the second signal, since Python may be stuck in a call."""
        time.sleep(_SECOND_AFTER)
        if number in self._previous:
            ctypes.pythonapi.PyOS_setsig(number, None)


class StopSwitch(StopSignals):
    """Whether the run must stop, and which threads are in blocking calls."""

    def __init__(self, leave: Callable[[], None]) -> None:
        super().__init__(self._request, ctrl_c=True)
        self.requested = False
        """The run ends at the next boundary."""
        self.left = False
        """This peer is no longer part of the run."""
        self._leave = leave
        self._torn = False
        self._over = False
        self._blocked: list[int] = []

    @contextmanager
    def blocking(self, *, at_boundary: bool = False) -> Iterator[None]:
        """Wraps every call that waits for other peers. At a boundary it raises ``Stopped`` if a stop was requested."""
        if self._over:
            raise RuntimeError("the run has ended: make this call inside the `with` block")
        if self.left:
            raise Stopped
        me = threading.get_ident()
        self._blocked.append(me)
        try:
            # Checked after the append: a later request finds this thread in the list.
            if at_boundary and self.requested:
                self.left = True
                raise Stopped
            yield
        except Exception as error:
            if self._torn:
                # The call failed because SIGTERM made the communicator leave.
                raise Stopped from error
            raise
        finally:
            self._blocked.remove(me)

    def leave(self) -> None:
        """Leaves the run, so that the others do not wait while this peer saves a checkpoint."""
        self.left = True
        self._leave()

    def end(self) -> None:
        """Ends the ``with`` block."""
        self.leave()
        self._over = True
        self.restore()

    def _request(self) -> None:
        self.requested = True
        if threading.get_ident() in self._blocked:
            self.left = True
            raise Stopped
        if self._blocked:
            # Another thread waits; leaving ends its call.
            self._torn = True
            self.leave()
