"""One step: local gradients come in, and averages over the living replicas come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pccl
import torch
from ringfold.torch.elastic.averages import Averages
from ringfold.torch.elastic.ballot import Ballot, Count
from ringfold.torch.elastic.buffers import Buffers
from ringfold.torch.elastic.gradients import Bucket, buckets_of
from ringfold.torch.elastic.replica import Replica
from ringfold.torch.elastic.shards import copies_of, locals_of
from ringfold.torch.elastic.stop_request import StopRequest
from ringfold.torch.elastic.world import World


class Step:
    """The averaged gradients of a step."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        replica: Replica,
        parameters: Sequence[torch.Tensor],
        buffers: Sequence[torch.Tensor],
        batch: int | None,
        stop: StopRequest,
        digests: Callable[[], Sequence[int]],
        compare: Callable[[Count], None],
    ) -> None:
        self._batch, self._digests, self._compare = batch, digests, compare
        tensors = locals_of(parameters)
        copies = [copies_of(parameter, replica) for parameter in parameters]
        kinds = [(tensor.dtype, tensor.device, held) for tensor, held in zip(tensors, copies, strict=True)]
        buckets = [Bucket(tensors, numbers, copies[numbers[0]]) for numbers in buckets_of(tensors, kinds)]
        self._bucket_of = {number: bucket for bucket in buckets for number in bucket.numbers}
        self._buffers = Buffers(locals_of(buffers))
        self._averages = Averages(communicator, replica, buckets, self._buffers, stop)
        self._used = [False] * len(tensors)
        self._world = World()
        self._began = 0.0
        self.is_open = False
        """Whether gradients are averaged."""
        self.weight = 0.0
        """That of this replica in the averages."""
        self.wants_vote = False
        self._goes_on = True
        self.count: Count | None = None
        """The outcome; None before it is known."""

    @property
    def is_last(self) -> bool:
        """Whether a rank of this replica has to stop."""
        return self._averages.is_last

    def begin(self, world: World, weight: float, total: float, wants_vote: bool, goes_on: bool) -> None:
        """A step begins, or is made again. ``total`` is what the weights of all replicas add up to, if they have all their samples.
        ``goes_on``: another step follows in the loop of this replica."""
        self._goes_on = goes_on
        self._world, self.weight, self.wants_vote = world, weight, wants_vote
        self._began = time.monotonic()
        self.count, self.is_open = None, True
        self._averages.begin(weight, total)
        self._used = [False] * len(self._used)

    def end(self) -> None:
        """Gradients are not averaged from now on."""
        self.is_open = False

    def put(self, number: int, gradient: torch.Tensor | None) -> None:
        """Takes a local gradient. A bucket leaves when it is full, in the order of buckets."""
        counts = gradient is not None and self.weight > 0
        self._used[number] = self._used[number] or counts
        self._bucket_of[number].put(number, gradient if counts else None, self._averages.share)
        self._averages.launch_full()

    def abstain(self) -> None:
        """This replica has no gradients: waits for the averages of the others."""
        self.weight = self._averages.weight = 0.0
        self.finish()

    def finish(self) -> None:
        """All gradients of a backward are there: waits for their averages."""
        seconds = time.monotonic() - self._began
        ballot = Ballot(
            self.weight, seconds, self.wants_vote, tuple(self._used), self._goes_on, self._digests()
        )
        self._averages.start(ballot, self._world)
        count = self._averages.finish()
        if self.count is not None and self.count.contributed != count.contributed:
            raise RuntimeError(
                "the world changed between two backward() of one step: use no_sync() for all but the last"
            )
        self._compare(count)
        self.count = count
        if self._batch is not None:
            self._averages.scale(count.weight / self._batch)
        self._averages.clear()
        self._used = [False] * len(self._used)

    def mean_of(self, number: int) -> torch.Tensor | None:
        """The average of a gradient; None if no replica has one."""
        assert self.count is not None
        return self._bucket_of[number].mean_of(number) if self.count.used[number] else None

    def is_finite(self) -> bool:
        """Whether no average has an infinity or NaN, on any rank of this replica."""
        return self._averages.is_finite()

    def assign_buffers(self) -> None:
        """Makes the buffers of the model equal on all replicas."""
        self._buffers.assign()
