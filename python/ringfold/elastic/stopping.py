"""The end of a run from outside: SIGTERM, or the program's own wish."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """Unwinds a blocking call that SIGTERM ended, up to the end of the ``with`` block. Not an ``Exception``, so that
    no ``except Exception`` on the way takes it for a failure."""


class StopSwitch:
    """Knows whether the run shall end, and who is in a blocking call that must end with it."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self.requested = False
        """The run ends at the next boundary."""
        self.left = False
        """This peer is no longer part of the run."""
        self._leave = leave
        self._torn = False
        self._over = False
        self._blocked: list[int] = []
        self._installed = False
        self._previous: Any = None

    def install(self) -> None:
        """Takes SIGTERM over, if this is the main thread: Python lets no other one do so."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._installed = True

    def restore(self) -> None:
        """Gives SIGTERM back to whoever had it."""
        if not self._installed:
            return
        self._installed = False
        # A handler that was not set from Python reads as None, and can't be set again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    @contextmanager
    def blocking(self, *, at_boundary: bool = False) -> Iterator[None]:
        """Around every call that waits for others. At a boundary none is begun if the run shall end there."""
        if self._over:
            raise RuntimeError("the run is over: this call belongs inside of the `with` block")
        if self.left:
            raise Stopped
        me = threading.get_ident()
        self._blocked.append(me)
        try:
            # Looked at only now: whoever asks from here on finds this thread among the blocked ones.
            if at_boundary and self.requested:
                self.left = True
                raise Stopped
            yield
        except Exception as error:
            if self._torn:
                # The call failed only because SIGTERM took the communicator away beneath it.
                raise Stopped from error
            raise
        finally:
            self._blocked.remove(me)

    def leave(self) -> None:
        """Leaves the run for good: whoever saves a checkpoint now holds nobody up."""
        self.left = True
        self._leave()

    def end(self) -> None:
        """The ``with`` block is left: there is nothing any more that an exception could unwind to."""
        self.leave()
        self._over = True
        self.restore()

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if threading.get_ident() in self._blocked:
            self.left = True
            raise Stopped
        if self._blocked:
            # Another thread waits, and no exception can be raised there from here.
            self._torn = True
            self.leave()
