"""The result of a call that two ranks make."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    """The result of a call that two ranks make. :meth:`get` may be called again, from any thread."""

    def __init__(self, finish: Callable[[float | None], T]) -> None:
        self._finish: Callable[[float | None], T] | None = finish
        self._lock = threading.Lock()
        self._value: T | None = None

    def get(self, timeout: float | None = None) -> T:
        """Waits for the other rank's call. After ``timeout`` seconds raises :class:`mscclpp.Error`; it may be called again."""
        with self._lock:
            if self._finish is not None:
                self._value = self._finish(timeout)
                self._finish = None
            return self._value  # type: ignore[return-value]
