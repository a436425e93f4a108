"""A receive from any rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchcomms._work import TorchWork

if TYPE_CHECKING:
    from ringfold import _native

# The pause between two checks for a sender, at first and at most.
_FIRST_PAUSE_SECONDS = 20e-6
_LAST_PAUSE_SECONDS = 1e-3


class AnySource:
    """A receive that starts when a rank has started to send. It is a :class:`torchcomms._work.Pending`."""

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
        """Held from the check for a sender to the start of the receive, so that two receives do not take one message."""
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._work: TorchWork | None = None
        self.source = -1
        """The rank of the sender, once it is known; −1 before."""

    def done(self) -> bool:
        """Whether it has ended or failed."""
        try:
            work = self._try_start()
        except RuntimeError:
            # The group has failed; wait() raises the error.
            return True
        return time.monotonic() >= self._deadline if work is None else work.is_completed()

    def wait(self, timeout: float | None) -> bool:
        """Waits up to ``timeout`` seconds. False if it has not ended by then; raises its error."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE_SECONDS
        while (work := self._try_start()) is None:
            now = time.monotonic()
            if now >= self._deadline:
                text = (
                    f"timed out after {self._timeout:g} s waiting for a send of any rank with tag {self._tag}"
                )
                raise RuntimeError(text)
            if deadline is not None and now >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)
        if deadline is not None and not work._wait_for(max(deadline - time.monotonic(), 0.0)):
            return False
        work.wait()
        return True

    def _try_start(self) -> TorchWork | None:
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
