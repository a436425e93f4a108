"""The gradients of a step, averaged over the living replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pccl
import torch
from ringfold.elastic.reduction import Operand, PendingReduction
from ringfold.torch.elastic.ballot import Ballot, Count

# The buckets of parameters that are reduced together, in bytes.
BUCKET_BYTES = 25 << 20


def buckets_of(parameters: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> list[list[int]]:
    """The numbers of the parameters in each bucket: the last parameters first, since their gradients come first. A bucket has one
    type and device. The same on all replicas, whatever the order in which their gradients come."""
    buckets: list[list[int]] = []
    room, kind = 0, None
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        nbytes = parameter.numel() * parameter.element_size()
        if not buckets or (parameter.dtype, parameter.device) != kind or nbytes > room:
            # The first one is small, so that something is in flight soon.
            room = bucket_bytes if buckets else min(bucket_bytes, 1 << 20)
            kind = (parameter.dtype, parameter.device)
            buckets.append([])
        buckets[-1].append(number)
        room -= nbytes
    return buckets


class Bucket:
    """Gradients that are reduced together. The local ones are kept until the step is committed."""

    def __init__(self, parameters: Sequence[torch.Tensor], numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)
        shapes = [parameters[number].shape for number in numbers]
        first = parameters[numbers[0]]
        sizes = [shape.numel() for shape in shapes]
        self.local = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.mean = torch.empty_like(self.local)
        self._places = {
            number: (self.local[end - size : end].view(shape), self.mean[end - size : end].view(shape))
            for number, size, shape, end in zip(numbers, sizes, shapes, _ends(sizes), strict=True)
        }
        self.missing: set[int] = set()

    def begin(self) -> None:
        """A new step: all gradients are missing."""
        self.missing = set(self.numbers)

    def put(self, number: int, gradient: torch.Tensor | None) -> None:
        """Takes a local gradient; none counts as zero."""
        place = self._places[number][0]
        place.zero_() if gradient is None else place.copy_(gradient)
        self.missing.discard(number)

    def clear(self) -> None:
        """This replica contributes nothing."""
        self.local.zero_()
        self.missing.clear()

    def mean_of(self, number: int) -> torch.Tensor:
        """The average of a gradient."""
        return self._places[number][1]


def _ends(sizes: Sequence[int]) -> list[int]:
    ends, end = [], 0
    for size in sizes:
        end += size
        ends.append(end)
    return ends


class StepReduction:
    """The reduction of one step: buckets, buffers and the ballot. All of them are averaged over the same replicas, or again."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        blocking: Callable[[], AbstractContextManager[None]],
        first_tag: int,
        weight: float,
        max_in_flight: int,
    ) -> None:
        self._tag = first_tag
        self._weight = weight
        self._pending = PendingReduction(communicator, blocking, [], max_in_flight)

    def average(self, number: int, send: torch.Tensor, recv: torch.Tensor) -> None:
        """Averages a tensor, weighted. ``number`` is the same on all replicas."""
        self._add(number, send, recv, pccl.ReduceOp.AVG, self._weight)

    def largest(self, number: int, send: torch.Tensor, recv: torch.Tensor) -> None:
        """The largest of integers."""
        self._add(number, send, recv, pccl.ReduceOp.MAX, None)

    def finish(self, number: int, ballot: Ballot, slot: int, slots: int) -> Count:
        """Sends the ballot, and waits for all results."""
        mine = ballot.vector(slot, slots)
        total = torch.empty_like(mine)
        self._add(number, mine.view(-1), total.view(-1), pccl.ReduceOp.SUM, None)
        self._pending.wait()
        return Count.of(total)

    def _add(self, number: int, send: Any, recv: Any, op: pccl.ReduceOp, weight: float | None) -> None:
        self._pending._add(Operand(send, recv, self._tag + number, op, weight))
