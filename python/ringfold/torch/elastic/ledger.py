"""Which samples of an epoch were used, and which replica gets which next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import torch


class SampleLedger:
    """The samples of an epoch that are left, in their order. All replicas hold the same ledger.

    A step is assigned, made, and committed. Samples of replicas that did not contribute to it are assigned again, so every
    sample is used once in each epoch, however the world changes.
    """

    def __init__(self, length: int, *, shuffle: bool = True, seed: int = 0) -> None:
        if length < 1:
            raise ValueError(f"invalid dataset of {length} samples: must have at least 1")
        self._length = length
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0
        self._cursor = 0
        self._returned: list[int] = []
        self._order = self._order_of(0)

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._epoch

    @property
    def left(self) -> int:
        """How many samples of the epoch were not used."""
        return len(self._returned) + self._length - self._cursor

    def assign(self, sizes: Sequence[int]) -> list[list[int]]:
        """The samples of the next step, for each replica at most as many as it wants. At the end of an epoch there may be
        fewer, or none."""
        rest = iter(self._rest())
        return [list(islice(rest, size)) for size in sizes]

    def commit(self, assigned: Sequence[Sequence[int]], contributed: Sequence[bool]) -> None:
        """A step was committed with the samples of the replicas that contributed."""
        self.draw(assigned)
        self.give_back(
            i for samples, used in zip(assigned, contributed, strict=True) if not used for i in samples
        )
        self.end_epoch()

    def draw(self, assigned: Sequence[Sequence[int]]) -> None:
        """Replicas use the samples of a step, and it is not known yet which of them will contribute."""
        drawn = sum(map(len, assigned))
        from_returned = min(drawn, len(self._returned))
        self._returned = self._returned[from_returned:]
        self._cursor += drawn - from_returned

    def give_back(self, samples: Iterable[int]) -> None:
        """These samples, drawn in this epoch, were not used after all."""
        self._returned.extend(samples)

    def end_epoch(self) -> None:
        """Begins the next epoch if all samples of this one were used."""
        if self.left == 0:
            self._begin(self._epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """What another ledger needs to continue."""
        return {
            "length": self._length,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "epoch": self._epoch,
            "cursor": self._cursor,
            "returned": list(self._returned),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where another ledger was."""
        if state["length"] != self._length:
            raise ValueError(
                f"invalid dataset of {self._length} samples: the run uses one of {state['length']} samples"
            )
        self._shuffle, self._seed = state["shuffle"], state["seed"]
        self._begin(state["epoch"])
        self._cursor, self._returned = state["cursor"], list(state["returned"])

    def _rest(self) -> Sequence[int]:
        return self._returned + self._order[self._cursor :]

    def _begin(self, epoch: int) -> None:
        self._epoch, self._cursor, self._returned = epoch, 0, []
        self._order = self._order_of(epoch)

    def _order_of(self, epoch: int) -> list[int]:
        if not self._shuffle:
            return list(range(self._length))
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % (1 << 63))
        order: list[int] = torch.randperm(self._length, generator=generator).tolist()
        return order
