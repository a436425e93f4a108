"""Replicas that are later than the others, step after step."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

# Differences below this are no reason to report anyone.
_SECONDS_MIN = 0.005


class Stragglers:
    """Counts for each replica the steps in a row in which it was late. The same on all replicas, since all see the same times."""

    def __init__(self, factor: float, steps: int) -> None:
        self._factor, self._steps = factor, steps
        self._late: dict[int, int] = {}

    def note(self, ids: Sequence[int], seconds: Sequence[float]) -> list[int]:
        """Takes the times of a step. The replicas that are stragglers now."""
        limit = median_low(seconds) * self._factor
        late = {
            number
            for number, time in zip(ids, seconds, strict=True)
            if time > max(limit, median_low(seconds) + _SECONDS_MIN)
        }
        self._late = {number: self._late.get(number, 0) + 1 for number in ids if number in late}
        return [number for number, steps in self._late.items() if steps >= self._steps]
