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
        batch: the samples of a step of the full world. Gradients are divided by this number, so that a smaller world makes smaller
            steps. None divides by the samples of the living replicas.
        not_finite: what to do if the averaged gradients have an infinity or NaN: make the step, skip it on all replicas, or
            stop with an error.
        attempts: how often a step is made before an error.
        straggler_factor: a replica that computes longer than this many times the median, in ``straggler_steps`` steps in a row, is
            reported as a straggler in the log and in ``run.stragglers``.
        evict_stragglers: stragglers also stop with an error, and the others continue.
        on_divergence: what to do if replicas differ in what must be equal: stop with an error that says what, give all of them the state
            that most of them have, or log a warning, once for each kind of difference.
        check_every: parameters and the optimiser's tensors are hashed and compared every so many steps, and after the last one.
    """

    replicas_min: int = 1
    below_min: Literal["wait", "stop"] = "wait"
    batch: int | None = None
    not_finite: Literal["step", "skip", "stop"] = "step"
    attempts: int = 3
    straggler_factor: float = 2.0
    straggler_steps: int = 10
    evict_stragglers: bool = False
    on_divergence: Literal["raise", "resync", "warn"] = "raise"
    check_every: int = 50

    def __post_init__(self) -> None:
        for name, value in (
            ("replicas_min", self.replicas_min),
            ("attempts", self.attempts),
            ("straggler_steps", self.straggler_steps),
            ("check_every", self.check_every),
            ("batch", 1 if self.batch is None else self.batch),
        ):
            if value < 1:
                raise ValueError(f"invalid {name} {value}: must be at least 1")
        if not self.straggler_factor > 1:
            raise ValueError(f"invalid straggler_factor {self.straggler_factor}: must be above 1")
        for name, text, allowed in (
            ("below_min", self.below_min, ("wait", "stop")),
            ("not_finite", self.not_finite, ("step", "skip", "stop")),
            ("on_divergence", self.on_divergence, ("raise", "resync", "warn")),
        ):
            if text not in allowed:
                raise ValueError(f"invalid {name} {text!r}: must be one of {', '.join(allowed)}")
