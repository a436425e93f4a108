"""Receiving from whoever sends first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from ringfold import _native

# How often one looks whether someone sends: often at first, then less.
_FIRST_PAUSE_SECONDS = 20e-6
_LAST_PAUSE_SECONDS = 1e-3


class AnySource:
    """A receive that begins when someone has begun to send. It is a :class:`torchcomms._work.Pending`."""

    def __init__(
        self,
        group: _native.Group,
        tag: int,
        recv: Callable[[int], TorchWork],
        lock: threading.Lock,
        timeout: float,
    ) -> None:
        self._group = group
        self._tag = tag
        self._recv = recv
        self._lock = lock
        """Held while one looks and begins, so that two receives do not take the same message."""
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._work: TorchWork | None = None
        self.source = -1
        """Who it is, once that is known."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        try:
            work = self._begin()
        except RuntimeError:
            # The group has failed; wait() says so.
            return True
        return time.monotonic() >= self._until if work is None else work.is_completed()

    def wait(self, timeout: float | None) -> bool:
        """Waits so many seconds, or to the end; whether it has ended. Raises what went wrong."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE_SECONDS
        while (work := self._begin()) is None:
            now = time.monotonic()
            if now >= self._until:
                raise RuntimeError(
                    f"nobody has sent anything with the tag {self._tag} within {self._timeout:g} s"
                )
            if until is not None and now >= until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)
        if until is not None and not work._wait_for(max(until - time.monotonic(), 0.0)):
            return False
        work.wait()
        return True

    def _begin(self) -> TorchWork | None:
        with self._lock:
            if self._work is None:
                source = self._group.sender(self._tag)
                failure = self._group.failure() if source is None else None
                if failure is not None:
                    raise failure
                if source is not None:
                    self.source = source
                    self._work = self._recv(source)
            return self._work
