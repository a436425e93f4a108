"""The sampler of an elastic run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Sized
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ringfold.torch.elastic.ledger import SampleLedger
from torch.utils.data import Sampler as TorchSampler

if TYPE_CHECKING:
    from ringfold.torch.elastic.run import ElasticRun


class Sampler(TorchSampler[int]):
    """Gives each replica other samples of a dataset. In each epoch every sample is used once, also when replicas come and go.

    Pass it to a ``DataLoader`` without ``drop_last``, to ``run.replicate(sampler=...)``, and iterate with ``run.batches``.

    ``part`` is for replicas of several ranks: the number of this rank among those with different samples, and how many those are. By
    default all ranks of a replica have different samples; with tensor parallelism alone all have the same, ``part=(0, 1)``.
    """

    def __init__(
        self,
        dataset: Sized,
        run: ElasticRun,
        *,
        shuffle: bool = True,
        seed: int = 0,
        part: tuple[int, int] | None = None,
    ) -> None:
        self.ledger = SampleLedger(len(dataset), shuffle=shuffle, seed=seed)
        self._length = len(dataset)
        self.part, self.parts = (run.replica.rank, run.replica.ranks) if part is None else part
        if not 0 <= self.part < self.parts:
            raise ValueError(f"invalid part {part}: must be a number and how many, such as (0, 2)")
        self._ahead: SampleLedger | None = None
        self._sizes: list[int] = []
        self._slot = 0
        self._predicted: deque[list[int]] = deque()

    def __len__(self) -> int:
        return self.ledger.left

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.ledger.epoch

    def mine(self, assigned: Sequence[int]) -> list[int]:
        """The samples of this rank, of those that its replica has."""
        return list(assigned[self.part :: self.parts])

    def plan(self, sizes: Sequence[int], slot: int) -> None:
        """From now on, batches are drawn as if the world stayed as it is: these sizes, this replica at this place."""
        self._ahead = deepcopy(self.ledger)
        self._sizes, self._slot = list(sizes), slot
        self._predicted.clear()

    def plan_any(self) -> None:
        """From now on, any samples are drawn."""
        self._ahead, self._sizes = SampleLedger(self._length, shuffle=False), []

    def take(self) -> list[int] | None:
        """The samples of the next batch that was drawn; None if none was."""
        return self._predicted.popleft() if self._predicted else None

    def __iter__(self) -> Iterator[int]:
        ahead = self._ahead
        if ahead is None:
            raise RuntimeError("iterate with `for step, batch in run.batches(loader)`, not over the loader")
        if not self._sizes:
            yield from range(self._length)
            return
        wanted = self._sizes[self._slot] // self.parts
        while True:
            assigned = ahead.assign(self._sizes)
            mine = self.mine(assigned[self._slot])
            ahead.commit(assigned, [True] * len(assigned))
            if not mine:
                return
            self._predicted.append(mine)
            yield from mine
            if len(mine) < wanted:
                # Ends the batch, too.
                return

    def state_dict(self) -> dict[str, Any]:
        """What another replica needs to continue."""
        return self.ledger.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where another replica was."""
        self.ledger.load_state_dict(state)
