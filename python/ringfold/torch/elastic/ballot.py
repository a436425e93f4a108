"""What the replicas tell each other in each step: one small vector, summed over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Per replica: whether it contributed, its weight, its seconds of computation, whether it wants a vote on newcomers.
_FIELDS = 4


@dataclass(frozen=True)
class Ballot:
    """What one replica says."""

    weight: float
    seconds: float = 0.0
    wants_vote: bool = False
    used: Sequence[bool] = ()
    """Which parameters have got a gradient."""

    def vector(self, slot: int, slots: int) -> torch.Tensor:
        """The vector of the replica with this number."""
        rows = torch.zeros(slots, _FIELDS, dtype=torch.float64)
        mine = [1.0, self.weight, self.seconds, float(self.wants_vote)]
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
        )

    @property
    def weight(self) -> float:
        """The sum of the weights."""
        return sum(self.weights)
