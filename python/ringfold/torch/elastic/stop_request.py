"""SIGTERM, the notice of a preemption: the replica leaves at the end of its step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """Whether the replica has to leave."""

    def __init__(self) -> None:
        self.is_made = False
        self._is_installed = False
        self._previous: Any = None

    def install(self) -> None:
        """Handles SIGTERM from now on, if this is the main thread."""
        if self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        self._previous = signal.signal(signal.SIGTERM, self._make)
        self._is_installed = True

    def remove(self) -> None:
        """Restores the previous handler."""
        if self._is_installed:
            self._is_installed = False
            # A handler that was not set from Python is None and cannot be restored.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._previous is None else self._previous)

    def _make(self, _number: int, _frame: FrameType | None) -> None:
        self.is_made = True
