"""Something that another rank has a part in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    """What a call on two ranks gives, once both have made it. :meth:`get` may be called again, from any thread."""

    def __init__(self, finish: Callable[[float | None], T]) -> None:
        self._finish: Callable[[float | None], T] | None = finish
        self._lock = threading.Lock()
        self._value: T | None = None

    def get(self, timeout: float | None = None) -> T:
        """Waits for the other rank's part. If it does not come in so many seconds, that is an :class:`mscclpp.Error`, and it can
        be asked for again.
        """
        with self._lock:
            if self._finish is not None:
                self._value = self._finish(timeout)
                self._finish = None
            return self._value  # type: ignore[return-value]
