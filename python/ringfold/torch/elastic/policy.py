"""What a run does when the world changes or a step goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Policy:
    """The same on all replicas.

    Arguments:
        replicas_min: no step begins with fewer replicas.
        below_min: what to do below that: wait for others, or stop with an error.
        not_finite: what to do if the averaged gradients have an infinity or NaN: make the step, skip it on all replicas, or
            stop with an error.
        attempts: how often a step is made before an error.
    """

    replicas_min: int = 1
    below_min: Literal["wait", "stop"] = "wait"
    not_finite: Literal["step", "skip", "stop"] = "step"
    attempts: int = 3

    def __post_init__(self) -> None:
        for name, value in (("replicas_min", self.replicas_min), ("attempts", self.attempts)):
            if value < 1:
                raise ValueError(f"invalid {name} {value}: must be at least 1")
