"""The replicas of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """The living replicas, in the same order on all of them."""

    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    slot: int = 0
    """The place of this replica."""

    def __len__(self) -> int:
        return len(self.ids)

    def keep(self, living: Sequence[bool]) -> World:
        """The world without the replicas that were lost."""
        if all(living):
            return self
        kept = [number for number, lives in enumerate(living) if lives]
        return World(
            ids=tuple(self.ids[number] for number in kept),
            names=tuple(self.names[number] for number in kept),
            batch_sizes=tuple(self.batch_sizes[number] for number in kept),
            slot=kept.index(self.slot),
        )
