"""Averages over the living replicas, all of them over the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pccl
import torch
from ringfold.elastic.run import OWN_TAGS
from ringfold.torch.elastic.ballot import Ballot, Count
from ringfold.torch.elastic.buffers import Buffers
from ringfold.torch.elastic.gradients import Bucket, StepReduction
from ringfold.torch.elastic.replica import Replica
from ringfold.torch.elastic.stop_request import StopRequest
from ringfold.torch.elastic.world import World

_IN_FLIGHT_MAX = 8


class Averages:
    """Averages of buckets and buffers. They are made again from the kept local values until all of them are over the same replicas,
    on all ranks of this one."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        replica: Replica,
        buckets: Sequence[Bucket],
        buffers: Buffers,
        stop: StopRequest,
        first_tag: int = OWN_TAGS + 1,
        quantization: pccl.QuantizationOptions | None = None,
    ) -> None:
        self._communicator, self._replica, self._stop = communicator, replica, stop
        self._first_tag, self._quantization = first_tag, quantization
        self.buckets = list(buckets)
        self._buffers = buffers
        self._reduction: StepReduction | None = None
        self._launched = 0
        self._ballot = Ballot(0.0)
        self._world = World()
        self.weight = 0.0
        """That of this replica."""
        self.total = 1.0
        """What all weights are expected to add up to: the same on all replicas."""
        self.is_last = False
        """Whether a rank of this replica has to stop."""

    @property
    def share(self) -> float:
        """What local values are multiplied by before they are summed."""
        return self.weight / self.total

    def begin(self, weight: float, total: float) -> None:
        """New averages: all local values are missing."""
        self.weight, self.total = weight, total
        self._reduction = None
        self.clear()

    def clear(self) -> None:
        """All local values are missing."""
        for bucket in self.buckets:
            bucket.begin()
        self._launched = 0

    def launch_full(self) -> None:
        """A bucket leaves when it is full, in the order of buckets."""
        while self._launched < len(self.buckets) and not self.buckets[self._launched].missing:
            self.buckets[self._launched].reduce(self._open(), self._launched)
            self._launched += 1

    def start(self, ballot: Ballot, world: World) -> None:
        """All local values are there that come: starts everything that was not, and the ballot. Missing values count as zero."""
        for bucket in self.buckets[self._launched :]:
            for number in list(bucket.missing):
                bucket.put(number, None)
        self.launch_full()
        self._ballot, self._world = ballot, world
        self._send()

    def finish(self) -> Count:
        """Waits for the averages. The ranks of the replica compare the replicas in theirs; those with more than the others make
        them again, without the replicas that another rank has lost."""
        slots = len(self._world)
        count: Count | None = None
        while True:
            if count is None:
                assert self._reduction is not None
                reduction, self._reduction = self._reduction, None
                count = reduction.wait()
            if self._replica.ranks == 1:
                break
            rows = self._replica.gather([*_row(count), self._stop.is_made])
            self.is_last = any(row[-1] for row in rows)
            together = tuple(all(row[slot] for row in rows) for slot in range(slots))
            if all(tuple(map(bool, row[:slots])) == together for row in rows):
                count = _joined(count, rows, slots)
                break
            if count.contributed != together:
                count = None
                for number, bucket in enumerate(self.buckets):
                    bucket.reduce(self._open(), number)
                self._send()
        for bucket in self.buckets:
            bucket.share()
        if count.weight not in (0.0, self.total):
            # Replicas were lost, or had fewer samples.
            self.scale(self.total / count.weight)
        return count

    def scale(self, factor: float) -> None:
        """Multiplies the averages."""
        for bucket in self.buckets:
            bucket.mean.mul_(factor)

    def is_finite(self) -> bool:
        """Whether no average has an infinity or NaN, on any rank of this replica."""
        mine = all(bool(torch.isfinite(bucket.mean).all()) for bucket in self.buckets)
        return not self._replica.any(not mine)

    def _open(self) -> StepReduction:
        if self._reduction is None:
            self._reduction = StepReduction(
                self._communicator,
                nullcontext,
                self._first_tag,
                self.weight,
                _IN_FLIGHT_MAX,
                self._quantization,
            )
        return self._reduction

    def _send(self) -> None:
        first_buffer = len(self.buckets)
        self._buffers.reduce(self._open(), first_buffer, self.weight > 0)
        number = first_buffer + len(self._buffers)
        self._open().cast(number, self._ballot, self._world.slot, len(self._world))


def _row(count: Count) -> list[int]:
    """What a rank tells the others of its replica."""
    milliseconds = [round(seconds * 1000) for seconds in count.seconds]
    return [*count.contributed, *milliseconds, count.wants_vote, count.goes_on, *count.differing]


def _joined(count: Count, rows: Sequence[Sequence[int]], slots: int) -> Count:
    """The same count on all ranks of the replica."""
    seconds = tuple(max(row[slots + slot] for row in rows) / 1000 for slot in range(slots))
    columns = list(zip(*rows, strict=True))[2 * slots : -1]
    wants_vote, goes_on, *differing = (any(column) for column in columns)
    return replace(count, seconds=seconds, wants_vote=wants_vote, goes_on=goes_on, differing=tuple(differing))
