"""Works: operations that were issued."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Literal, Protocol

WorkEvent = Literal["start", "end", "wait"]
WorkListener = Callable[[WorkEvent], None]


class WorkStatus(Enum):
    """The state of an operation."""

    NOT_STARTED = 0
    INPROGRESS = 1
    COMPLETED = 2
    TIMEDOUT = 3
    ERROR = 4


class Pending(Protocol):
    """A started operation; ``ringfold._native.GroupWork``, for example."""

    def wait(self, timeout: float | None) -> bool:
        """Waits up to ``timeout`` seconds. False if it has not ended by then; raises its error."""
        ...

    def done(self) -> bool:
        """Whether it has ended or failed."""
        ...


class TorchWork:
    """An operation that was issued. It is safe to drop it, or its tensors, before it has ended.

    ``wait()`` may be called any number of times, and raises the operation's error each time.
    """

    __slots__ = ("__weakref__", "_error", "_listeners", "_on_error", "_pending")

    _is_on_device = False
    """Whether it is queued on a stream."""

    def __init__(
        self,
        pending: Pending | None = None,
        error: BaseException | None = None,
        on_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._pending = pending
        self._error = error
        self._on_error = on_error
        self._listeners: list[WorkListener] | None = None

    @property
    def status(self) -> WorkStatus:
        """Its state."""
        if not self.is_completed():
            return WorkStatus.INPROGRESS
        if self._error is None:
            return WorkStatus.COMPLETED
        is_timeout = getattr(self._error, "kind", None) == "timeout"
        return WorkStatus.TIMEDOUT if is_timeout else WorkStatus.ERROR

    def is_completed(self) -> bool:
        """Whether it has ended or failed. Does not wait."""
        pending = self._pending
        if pending is None:
            return True
        if not pending.done():
            return False
        self._settle(None)
        return self._pending is None

    def wait(self) -> None:
        """Waits for the end, and raises its error."""
        if self._pending is not None:
            self._settle(None)
        if self._listeners:
            self._notify("wait")
        if self._error is not None:
            if self._on_error is not None:
                on_error, self._on_error = self._on_error, None
                on_error(self._error)
            raise self._error

    def wait_blocking(self) -> None:
        """Waits until the result is in memory, even if ``wait()`` only orders a stream after it."""
        self.wait()

    def _wait_for(self, seconds: float | None) -> bool:
        """Waits up to so many seconds; whether it has ended. Does not raise its error."""
        return self._pending is None or self._settle(seconds)

    def _listen(self, listener: WorkListener) -> None:
        """Calls ``listener`` when it starts, ends, and is waited for; at once for past events."""
        listener("start")
        if self._pending is None:
            listener("end")
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(listener)

    def _settle(self, seconds: float | None) -> bool:
        pending = self._pending
        if pending is None:
            return True
        try:
            if not pending.wait(seconds):
                return False
        except Exception as error:
            self._error = error
        if self._pending is not None:
            # Only the first thread that sees the end comes here.
            self._pending = None
            self._notify("end")
        return True

    def _notify(self, event: WorkEvent) -> None:
        for listener in self._listeners or ():
            listener(event)

    def __repr__(self) -> str:
        return f"TorchWork({self.status.name})"
