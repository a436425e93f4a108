"""Stops a run early: by SIGTERM or by the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopped(BaseException):
    """Unwinds a blocking call after SIGTERM, up to the end of the ``with`` block. It is not an ``Exception``, so that no
    ``except Exception`` catches it."""


class StopSwitch:
    """Whether the run must stop, and which threads are in blocking calls."""

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
        """Installs the handler of SIGTERM, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._installed = True

    def restore(self) -> None:
        """Restores the previous handler of SIGTERM."""
        if not self._installed:
            return
        self._installed = False
        # A handler that was not set from Python is None and cannot be restored.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

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

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        if threading.get_ident() in self._blocked:
            self.left = True
            raise Stopped
        if self._blocked:
            # Another thread waits; leaving ends its call.
            self._torn = True
            self.leave()
