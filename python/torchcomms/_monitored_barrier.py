"""A barrier after which rank 0 knows who has not come.

Ranks tell rank 0 that they have come, and it tells them to go, beside all operations: whoever does not come in time harms nothing,
and the communicator is as good as before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfold import _native

# What the ranks' notes are about: any number that nothing else uses.
_TOPIC = 0x6D6F_6E69_746F_7200

# How much longer than rank 0 the others wait: it gives up at about the same moment, and knows who is missing.
_GRACE_SECONDS = 1.0

# How long one listens at a time: in between Python sees to signals, Ctrl-C among them.
_LISTEN_SECONDS = 0.1


class MonitoredBarrier:
    """The monitored barriers of one rank of a group."""

    def __init__(self) -> None:
        self._number = 0

    def wait(self, group: _native.Group, timeout: float, wait_all_ranks: bool) -> None:
        """Waits until all ranks have come. Raises a RuntimeError that says who has not: the first one that was missed, or
        all of them if ``wait_all_ranks`` is set."""
        self._number += 1
        if group.rank == 0:
            self._lead(group, timeout, wait_all_ranks)
        else:
            self._follow(group, timeout)

    def _lead(self, group: _native.Group, timeout: float, wait_all_ranks: bool) -> None:
        until = time.monotonic() + timeout
        come: dict[int, str] = {}
        missing: list[int] = []
        for rank in range(1, group.world):
            number = _comes(group, rank, until)
            if number is not None:
                come[rank] = number
                continue
            missing.append(rank)
            if not wait_all_ranks:
                break
        if not missing:
            for rank, number in come.items():
                group.tell([rank], _TOPIC, f"go {number}")
            return
        ranks = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
        failure = f"{ranks} failed to pass monitoredBarrier in {timeout * 1000:.0f} ms"
        for rank in range(1, group.world):
            # Those that rank 0 did not get to hear of may have come too.
            number = come.get(rank) or _comes(group, rank, 0.0)
            if number is not None:
                group.tell([rank], _TOPIC, f"fail {number} {failure}")
        raise RuntimeError(f"[Rank 0]: {failure}")

    def _follow(self, group: _native.Group, timeout: float) -> None:
        until = time.monotonic() + timeout + _GRACE_SECONDS
        group.tell([0], _TOPIC, f"come {self._number}")
        while (text := _heard(group, 0, until)) is not None:
            word, _, rest = text.partition(" ")
            number, _, failure = rest.partition(" ")
            if number != str(self._number):
                continue
            if word == "go":
                return
            raise RuntimeError(f"[Rank {group.rank}]: {failure}, says rank 0")
        group.tell([0], _TOPIC, f"gone {self._number}")
        raise RuntimeError(
            f"[Rank {group.rank}]: Rank 0 failed to pass monitoredBarrier in {timeout * 1000:.0f} ms"
        )


def _comes(group: _native.Group, rank: int, until: float) -> str | None:
    """The number by which a rank calls this barrier, if it comes in time and does not leave again."""
    while (text := _heard(group, rank, until)) is not None:
        word, _, number = text.partition(" ")
        if word == "come":
            return number
    return None


def _heard(group: _native.Group, rank: int, until: float) -> str | None:
    while True:
        left = max(until - time.monotonic(), 0.0)
        text = group.hear(rank, _TOPIC, min(left, _LISTEN_SECONDS))
        if text is not None or left == 0.0:
            return text
        failure = group.failure()
        if failure is not None:
            raise RuntimeError(f"[Rank {group.rank}]: monitoredBarrier: {failure}") from failure
