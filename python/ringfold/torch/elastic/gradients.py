"""The gradients of a step, averaged over the living replicas."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

import pccl
import torch
import torch.distributed as dist
from ringfold.elastic.reduction import Operand, PendingReduction
from ringfold.torch.elastic.ballot import Ballot, Count

# The buckets of parameters that are reduced together, in bytes.
BUCKET_BYTES = 25 << 20


def buckets_of(
    tensors: Sequence[torch.Tensor], kinds: Sequence[Hashable], bucket_bytes: int = BUCKET_BYTES
) -> list[list[int]]:
    """The numbers of the tensors in each bucket: the last ones first, since their gradients come first. A bucket has one kind. The
    same on all replicas, whatever the order in which their gradients come."""
    buckets: list[list[int]] = []
    rooms: dict[Hashable, tuple[list[int], int]] = {}
    for number in reversed(range(len(tensors))):
        nbytes = tensors[number].numel() * tensors[number].element_size()
        bucket, room = rooms.get(kinds[number], ([], 0))
        if not bucket or room <= 0:
            bucket = []
            # The first one is small, so that something is in flight soon.
            room = bucket_bytes if buckets else min(bucket_bytes, 1 << 20)
            buckets.append(bucket)
        bucket.append(number)
        rooms[kinds[number]] = (bucket, room - nbytes)
    return buckets


class Bucket:
    """Tensors that are reduced together. The local ones are kept until the step is committed."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[int],
        copies: Sequence[dist.ProcessGroup] = (),
    ) -> None:
        self.numbers = list(numbers)
        self._copies = copies
        self.owns = all(dist.get_rank(group) == 0 for group in copies)
        """Whether this rank reduces it. Other ranks of the replica that hold the same get the result from the one that does."""
        shapes = [tensors[number].shape for number in numbers]
        first = tensors[numbers[0]]
        sizes = [shape.numel() for shape in shapes]
        self.local = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.mean = torch.zeros_like(self.local)
        self._places = {
            number: (self.local[end - size : end].view(shape), self.mean[end - size : end].view(shape))
            for number, size, shape, end in zip(numbers, sizes, shapes, accumulate(sizes), strict=True)
        }
        self.missing: set[int] = set()

    def begin(self) -> None:
        """A new step: all are missing."""
        self.missing = set(self.numbers)

    def put(self, number: int, tensor: torch.Tensor | None, share: float = 1.0) -> None:
        """Takes a local tensor, multiplied by this; none counts as zero."""
        place = self._places[number][0]
        if tensor is None:
            place.zero_()
        elif share == 1.0 or tensor.dtype != place.dtype:
            place.copy_(tensor)
            if share != 1.0:
                place.mul_(share)
        else:
            torch.mul(tensor.detach(), share, out=place)
        self.missing.discard(number)

    def reduce(self, reduction: StepReduction, number: int) -> None:
        """Starts the sum of what the replicas have put, if this rank has to."""
        if self.owns and self.local.numel():
            reduction.sum(number, self.local, self.mean)

    def share(self) -> None:
        """Gives the average to the other ranks of the replica that hold the same."""
        for group in self._copies:
            dist.broadcast(self.mean, group=group, group_src=0)

    def local_of(self, number: int) -> torch.Tensor:
        """What this rank has put of a tensor, multiplied by its share."""
        return self._places[number][0]

    def mean_of(self, number: int) -> torch.Tensor:
        """The average of a tensor."""
        return self._places[number][1]


class StepReduction:
    """The reduction of one step: buckets, buffers and the ballot. All of them are averaged over the same replicas, or again."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        blocking: Callable[[], AbstractContextManager[None]],
        first_tag: int,
        weight: float,
        max_in_flight: int,
        quantization: pccl.QuantizationOptions | None = None,
    ) -> None:
        self._tag = first_tag
        self._weight = weight
        self._quantization = quantization
        self._total = torch.empty(0)
        self._slots = 0
        self._pending = PendingReduction(communicator, blocking, [], max_in_flight)

    def average(self, number: int, send: torch.Tensor, recv: torch.Tensor) -> None:
        """Averages a tensor, weighted. ``number`` is the same on all replicas."""
        self._add(number, send, recv, pccl.ReduceOp.AVG, self._weight)

    def sum(self, number: int, send: torch.Tensor, recv: torch.Tensor) -> None:
        """Sums a tensor, quantised if the reduction is."""
        self._add(number, send, recv, pccl.ReduceOp.SUM, None, self._quantization)

    def largest(self, number: int, send: torch.Tensor, recv: torch.Tensor) -> None:
        """The largest of integers."""
        self._add(number, send, recv, pccl.ReduceOp.MAX)

    def cast(self, number: int, ballot: Ballot, slot: int, slots: int) -> None:
        """Sends the ballot."""
        mine = ballot.vector(slot, slots)
        self._total, self._slots = torch.empty_like(mine), slots
        self._add(number, mine, self._total, pccl.ReduceOp.SUM)

    def wait(self) -> Count:
        """Waits for all results; of these, the sum of the ballots."""
        self._pending.wait()
        return Count.of(self._total, self._slots)

    def _add(
        self,
        number: int,
        send: Any,
        recv: Any,
        op: pccl.ReduceOp,
        weight: float | None = None,
        quantization: pccl.QuantizationOptions | None = None,
    ) -> None:
        if send.is_cuda:
            # The engine does not know the streams of torch.
            torch.cuda.current_stream(send.device).synchronize()
        self._pending._add(Operand(send, recv, self._tag + number, op, weight, quantization))
