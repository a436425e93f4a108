"""Callbacks that can be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

    __slots__ = ("_all", "_next")

    def __init__(self) -> None:
        self._all: dict[int, F] = {}
        self._next = 0

    def add(self, callback: F) -> RemovableHandle:
        """Keeps a callback until its handle removes it."""
        key = self._next
        self._next += 1
        self._all[key] = callback
        return RemovableHandle(lambda: self._drop(key))

    def _drop(self, key: int) -> None:
        self._all.pop(key, None)

    def __iter__(self) -> Iterator[F]:
        # A hook may remove itself, or others.
        return iter(list(self._all.values()))

    def __bool__(self) -> bool:
        return bool(self._all)
