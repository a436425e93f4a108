"""Callbacks that can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

F = TypeVar("F")


class RemovableHandle:
    """What registering a hook returns. ``remove()`` takes the hook back; doing it again does nothing."""

    __slots__ = ("_remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """The hook is not called any more."""
        self._remove()


class Hooks(Generic[F]):
    """Callbacks in the order in which they were registered."""

    __slots__ = ("_keyed", "_next", "every")

    def __init__(self) -> None:
        self._keyed: dict[int, F] = {}
        self._next = 0
        self.every: tuple[F, ...] = ()
        """Those that are registered now. A hook may remove itself or others: whoever goes through them is not disturbed."""

    def add(self, callback: F) -> RemovableHandle:
        """Keeps a callback until its handle removes it."""
        key = self._next
        self._next += 1
        self._keyed[key] = callback
        self.every = tuple(self._keyed.values())
        return RemovableHandle(lambda: self._drop(key))

    def _drop(self, key: int) -> None:
        if self._keyed.pop(key, None) is not None:
            self.every = tuple(self._keyed.values())
