"""What the replicas tell each other in each step: one small vector, summed over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# What has to be equal on all replicas.
CATEGORIES = ("step", "optimizer", "scheduler", "rng", "tensors")
# Per replica: whether it contributed, its weight, its seconds of computation, whether it wants a vote on newcomers, whether it goes on,
# its digests.
_FIELDS = 5 + len(CATEGORIES)


@dataclass(frozen=True)
class Ballot:
    """What one replica says."""

    weight: float
    seconds: float = 0.0
    wants_vote: bool = False
    used: Sequence[bool] = ()
    """Which parameters have got a gradient."""
    goes_on: bool = True
    """Whether another step follows this one in its loop."""
    digests: Sequence[int] = (0,) * len(CATEGORIES)
    """What decides the update of this replica, by category; 0 is not compared."""

    def vector(self, slot: int, slots: int) -> torch.Tensor:
        """The vector of the replica with this number."""
        rows = torch.zeros(slots, _FIELDS, dtype=torch.float64)
        mine = [1.0, self.weight, self.seconds, float(self.wants_vote), float(self.goes_on), *self.digests]
        rows[slot] = torch.tensor(mine, dtype=torch.float64)
        return torch.cat([rows.view(-1), torch.tensor(self.used, dtype=torch.float64)])


@dataclass(frozen=True)
class Count:
    """The sum, the same on all replicas."""

    contributed: tuple[bool, ...]
    """Whether each replica of the step's begin is in the averages."""
    weights: tuple[float, ...]
    seconds: tuple[float, ...]
    wants_vote: bool
    used: tuple[bool, ...] = ()
    """Which parameters have got a gradient on any replica."""
    goes_on: bool = True
    """Whether another step follows on any replica."""
    differing: tuple[bool, ...] = ()
    """In which categories replicas differ."""

    @staticmethod
    def of(total: torch.Tensor, slots: int) -> Count:
        """Reads a sum of vectors."""
        rows: list[list[float]] = total[: slots * _FIELDS].view(slots, _FIELDS).tolist()
        return Count(
            contributed=tuple(bool(row[0]) for row in rows),
            weights=tuple(row[1] for row in rows),
            seconds=tuple(row[2] for row in rows),
            wants_vote=any(row[3] for row in rows),
            used=tuple(total[slots * _FIELDS :].gt(0).tolist()),
            goes_on=any(row[4] for row in rows),
            differing=tuple(len(set(digests) - {0.0}) > 1 for digests in list(zip(*rows, strict=True))[5:]),
        )

    @property
    def weight(self) -> float:
        """The sum of the weights."""
        return sum(self.weights)
