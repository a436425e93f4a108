"""A barrier after which rank 0 knows the missing ranks.

Ranks report to rank 0 by notes beside all operations, and rank 0 answers. A late rank does no harm: the communicator stays usable.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfold import _native

# The topic of the notes: a number that nothing else uses.
_TOPIC = 0x6D6F_6E69_746F_7200

# How much longer than rank 0 the others wait: its error names the missing ranks.
_GRACE_SECONDS = 1.0

# How often a waiting thread returns to Python, which handles signals then.
_STEP_SECONDS = 0.1


class MonitoredBarrier:
    """The monitored barriers of one rank of a group."""

    def __init__(self) -> None:
        self._number = 0

    def wait(self, group: _native.Group, timeout: float, wait_all_ranks: bool) -> None:
        """Waits until all ranks have called it.

        The RuntimeError names the first missing rank, or, with ``wait_all_ranks``, all missing ranks.
        """
        self._number += 1
        if group.rank == 0:
            self._lead(group, timeout, wait_all_ranks)
        else:
            self._follow(group, timeout)

    def _lead(self, group: _native.Group, timeout: float, wait_all_ranks: bool) -> None:
        deadline = time.monotonic() + timeout
        present: dict[int, str] = {}
        missing: list[int] = []
        for rank in range(1, group.world):
            number = _arrival(group, rank, deadline)
            if number is not None:
                present[rank] = number
                continue
            missing.append(rank)
            if not wait_all_ranks:
                break
        if not missing:
            for rank, number in present.items():
                group.send_note([rank], _TOPIC, f"go {number}")
            return
        ranks = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
        failure = f"{ranks} failed to pass monitoredBarrier in {timeout * 1000:.0f} ms"
        for rank in range(1, group.world):
            # Ranks that were not waited for may be here, too.
            number = present.get(rank) or _arrival(group, rank, 0.0)
            if number is not None:
                group.send_note([rank], _TOPIC, f"fail {number} {failure}")
        raise RuntimeError(f"[Rank 0]: {failure}")

    def _follow(self, group: _native.Group, timeout: float) -> None:
        deadline = time.monotonic() + timeout + _GRACE_SECONDS
        group.send_note([0], _TOPIC, f"come {self._number}")
        while (text := _next_note(group, 0, deadline)) is not None:
            word, _, rest = text.partition(" ")
            number, _, failure = rest.partition(" ")
            if number != str(self._number):
                continue
            if word == "go":
                return
            raise RuntimeError(f"[Rank {group.rank}]: {failure} (reported by rank 0)")
        group.send_note([0], _TOPIC, f"gone {self._number}")
        raise RuntimeError(
            f"[Rank {group.rank}]: Rank 0 failed to pass monitoredBarrier in {timeout * 1000:.0f} ms"
        )


def _arrival(group: _native.Group, rank: int, deadline: float) -> str | None:
    """The number of a rank's barrier call, if it comes in time and is not withdrawn."""
    while (text := _next_note(group, rank, deadline)) is not None:
        word, _, number = text.partition(" ")
        if word == "come":
            return number
    return None


def _next_note(group: _native.Group, rank: int, deadline: float) -> str | None:
    while True:
        left = max(deadline - time.monotonic(), 0.0)
        text = group.recv_note(rank, _TOPIC, min(left, _STEP_SECONDS))
        if text is not None or left == 0.0:
            return text
        failure = group.failure()
        if failure is not None:
            raise RuntimeError(f"[Rank {group.rank}]: monitoredBarrier: {failure}") from failure
