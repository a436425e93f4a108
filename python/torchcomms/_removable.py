"""Callbacks that can be removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

F = TypeVar("F")


class RemovableHandle:
    """A registered hook. ``remove()`` removes it; calling it again does nothing."""

    __slots__ = ("_remove",)

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove = remove

    def remove(self) -> None:
        """Removes the hook."""
        self._remove()


class Hooks(Generic[F]):
    """Callbacks in order of registration."""

    __slots__ = ("_keyed", "_next", "every")

    def __init__(self) -> None:
        self._keyed: dict[int, F] = {}
        self._next = 0
        self.every: tuple[F, ...] = ()
        """The registered callbacks. A new tuple after each change, so hooks may remove hooks during iteration."""

    def add(self, callback: F) -> RemovableHandle:
        """Adds a callback; its handle removes it."""
        key = self._next
        self._next += 1
        self._keyed[key] = callback
        self.every = tuple(self._keyed.values())
        return RemovableHandle(lambda: self._remove(key))

    def _remove(self, key: int) -> None:
        if self._keyed.pop(key, None) is not None:
            self.every = tuple(self._keyed.values())
