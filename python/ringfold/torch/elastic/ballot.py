"""What the replicas tell each other in each step: one small vector, summed over all of them."""

from __future__ import annotations

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

    def vector(self, slot: int, slots: int) -> torch.Tensor:
        """The vector of the replica with this number."""
        vector = torch.zeros(slots, _FIELDS, dtype=torch.float64)
        vector[slot] = torch.tensor(
            [1.0, self.weight, self.seconds, float(self.wants_vote)], dtype=torch.float64
        )
        return vector


@dataclass(frozen=True)
class Count:
    """The sum, the same on all replicas."""

    contributed: tuple[bool, ...]
    """Whether each replica of the step's begin is in the averages."""
    weights: tuple[float, ...]
    seconds: tuple[float, ...]
    wants_vote: bool

    @staticmethod
    def of(total: torch.Tensor) -> Count:
        """Reads a sum of vectors."""
        rows: list[list[float]] = total.tolist()
        return Count(
            contributed=tuple(bool(row[0]) for row in rows),
            weights=tuple(row[1] for row in rows),
            seconds=tuple(row[2] for row in rows),
            wants_vote=any(row[3] for row in rows),
        )

    @property
    def weight(self) -> float:
        """The sum of the weights."""
        return sum(self.weights)
