"""One step: local gradients come in, and averages over the living replicas come out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pccl
import torch
from ringfold.elastic.run import OWN_TAGS
from ringfold.torch.elastic.ballot import Ballot, Count
from ringfold.torch.elastic.buffers import Buffers
from ringfold.torch.elastic.gradients import Bucket, StepReduction, buckets_of
from ringfold.torch.elastic.replica import Replica
from ringfold.torch.elastic.shards import copies_of, locals_of
from ringfold.torch.elastic.stop_request import StopRequest
from ringfold.torch.elastic.world import World

_IN_FLIGHT_MAX = 8


class Step:
    """The averages of a step. They are made again from the kept local gradients until all of them are over the same replicas, on all
    ranks of this one."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        replica: Replica,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        batch: int | None,
        stop: StopRequest,
    ) -> None:
        self._communicator, self._replica, self._batch, self._stop = communicator, replica, batch, stop
        tensors = locals_of(parameters)
        copies = [copies_of(parameter, replica) for parameter in parameters]
        kinds = [(tensor.dtype, tensor.device, held) for tensor, held in zip(tensors, copies, strict=True)]
        self._buckets = [
            Bucket(tensors, numbers, copies[numbers[0]]) for numbers in buckets_of(tensors, kinds)
        ]
        self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.numbers}
        self._buffers = Buffers(locals_of(buffers))
        self._used = [False] * len(tensors)
        self._world = World()
        self._began = 0.0
        self._launched = 0
        self._reduction: StepReduction | None = None
        self.is_open = False
        """Whether gradients are averaged."""
        self.weight = 0.0
        """That of this replica in the averages."""
        self.wants_vote = False
        self.count: Count | None = None
        """The outcome; None before it is known."""
        self.is_last = False
        """Whether a rank of this replica has to stop."""

    def begin(self, world: World, weight: float, wants_vote: bool) -> None:
        """A step begins, or is made again."""
        self._world, self.weight, self.wants_vote = world, weight, wants_vote
        self._began = time.monotonic()
        self._reduction, self.count, self.is_open = None, None, True
        self._clear()

    def end(self) -> None:
        """Gradients are not averaged from now on."""
        self.is_open = False

    def put(self, number: int, gradient: torch.Tensor | None) -> None:
        """Takes a local gradient. A bucket leaves when it is full, in the order of buckets."""
        counts = gradient is not None and self.weight > 0
        self._used[number] = self._used[number] or counts
        self._bucket_of[number].put(number, gradient if counts else None)
        self._launch_full()

    def abstain(self) -> None:
        """This replica has no gradients: waits for the averages of the others."""
        self.weight = 0.0
        self.finish()

    def finish(self) -> None:
        """All gradients of a backward are there: waits for their averages."""
        for bucket in self._buckets[self._launched :]:
            for number in list(bucket.missing):
                bucket.put(number, None)
        self._launch_full()
        seconds = time.monotonic() - self._began
        count = self._reduce(Ballot(self.weight, seconds, self.wants_vote, tuple(self._used)))
        if self.count is not None and self.count.contributed != count.contributed:
            raise RuntimeError(
                "the world changed between two backward() of one step: use no_sync() for all but the last"
            )
        self.count = count
        for bucket in self._buckets:
            bucket.share()
            if self._batch is not None:
                bucket.mean.mul_(count.weight / self._batch)
        self._clear()

    def mean_of(self, number: int) -> torch.Tensor | None:
        """The average of a gradient; None if no replica has one."""
        assert self.count is not None
        return self._bucket_of[number].mean_of(number) if self.count.used[number] else None

    def is_finite(self) -> bool:
        """Whether no average has an infinity or NaN, on any rank of this replica."""
        mine = all(bool(torch.isfinite(bucket.mean).all()) for bucket in self._buckets)
        return not self._replica.any(not mine)

    def assign_buffers(self) -> None:
        """Makes the buffers of the model equal on all replicas."""
        self._buffers.assign()

    def _clear(self) -> None:
        for bucket in self._buckets:
            bucket.begin()
        self._launched = 0
        self._used = [False] * len(self._used)

    def _open_reduction(self) -> StepReduction:
        if self._reduction is None:
            self._reduction = StepReduction(
                self._communicator, nullcontext, OWN_TAGS + 1, self.weight, _IN_FLIGHT_MAX
            )
        return self._reduction

    def _launch_full(self) -> None:
        while self._launched < len(self._buckets) and not self._buckets[self._launched].missing:
            self._buckets[self._launched].reduce(self._open_reduction(), self._launched)
            self._launched += 1

    def _reduce(self, ballot: Ballot) -> Count:
        """Waits for the averages. The ranks of the replica compare the replicas in theirs; those with more than the others make
        them again, without the replicas that another rank has lost."""
        slots = len(self._world)
        first_buffer = len(self._buckets)
        count: Count | None = None
        while True:
            if count is None:
                reduction, self._reduction = self._open_reduction(), None
                self._buffers.reduce(reduction, first_buffer, self.weight > 0)
                count = reduction.finish(first_buffer + len(self._buffers), ballot, self._world.slot, slots)
            if self._replica.ranks == 1:
                return count
            rows = self._replica.gather([*_row(count), self._stop.is_made])
            self.is_last = any(row[-1] for row in rows)
            together = tuple(all(row[slot] for row in rows) for slot in range(slots))
            if all(tuple(map(bool, row[:slots])) == together for row in rows):
                return _joined(count, rows, slots)
            if count.contributed != together:
                count = None
                for number, bucket in enumerate(self._buckets):
                    bucket.reduce(self._open_reduction(), number)


def _row(count: Count) -> list[int]:
    """What a rank tells the others of its replica."""
    milliseconds = [round(seconds * 1000) for seconds in count.seconds]
    return [*count.contributed, *milliseconds, count.wants_vote]


def _joined(count: Count, rows: Sequence[Sequence[int]], slots: int) -> Count:
    """The same count on all ranks of the replica."""
    seconds = tuple(max(row[slots + slot] for row in rows) / 1000 for slot in range(slots))
    return replace(count, seconds=seconds, wants_vote=any(row[2 * slots] for row in rows))
