"""What a run does when the world changes or a step goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Policy:
    """The same on all replicas.

    Arguments:
        replicas_min: no step begins with fewer replicas.
        below_min: what to do below that: wait for others, or stop the run on all replicas.
        scale: gradients are the mean over the living replicas, weighted by their samples, or, with ``"fixed"``, the sum over
            ``replicas_min`` batches, as if the missing ones had contributed zeros.
        not_finite: what to do if the averaged gradients have an infinity or NaN: make the step, skip it on all replicas, or
            stop with an error.
        attempts: how often a step is made again before an error.
        straggler_factor, straggler_steps: a replica that computes longer than this many times the median, for this many steps
            in a row, is reported; see ``evict_stragglers``.
        evict_stragglers: such a replica leaves the run.
    """

    replicas_min: int = 1
    below_min: Literal["wait", "stop"] = "wait"
    scale: Literal["living", "fixed"] = "living"
    not_finite: Literal["step", "skip", "stop"] = "step"
    attempts: int = 3
    straggler_factor: float = 3.0
    straggler_steps: int = 10
    evict_stragglers: bool = False

    def __post_init__(self) -> None:
        if self.replicas_min < 1:
            raise ValueError(f"invalid replicas_min {self.replicas_min}: must be at least 1")
        if self.attempts < 1:
            raise ValueError(f"invalid attempts {self.attempts}: must be at least 1")
        if self.straggler_factor <= 1 or self.straggler_steps < 1:
            raise ValueError(
                f"invalid straggler limit {self.straggler_factor} x, {self.straggler_steps} steps: "
                "must be more than 1 x, and at least 1 step"
            )
