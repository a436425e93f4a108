"""The buffers of a model, such as the statistics of batch normalisation: made equal on all replicas in each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from ringfold.torch.elastic.gradients import Bucket, StepReduction


class Buffers:
    """Floating-point buffers become their weighted mean, others their maximum."""

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        self._buffers = list(buffers)
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for number, buffer in enumerate(self._buffers):
            kinds.setdefault((buffer.dtype, buffer.device), []).append(number)
        self._buckets = [Bucket(self._buffers, numbers) for numbers in kinds.values()]

    def __len__(self) -> int:
        """How many reductions it needs."""
        return len(self._buckets)

    def reduce(self, reduction: StepReduction, first: int, contributes: bool) -> None:
        """Starts the reductions, numbered from ``first`` on."""
        for number, bucket in enumerate(self._buckets, first):
            for index in bucket.numbers:
                bucket.put(index, self._buffers[index].detach() if contributes else None)
            if bucket.local.dtype.is_floating_point:
                reduction.average(number, bucket.local, bucket.mean)
            else:
                reduction.largest(number, bucket.local, bucket.mean)

    def assign(self, keep_changes: bool = False) -> None:
        """Writes the results into the buffers, or adds to them how the buffers have changed meanwhile."""
        with torch.no_grad():
            for bucket in self._buckets:
                for index in bucket.numbers:
                    buffer, mean = self._buffers[index], bucket.mean_of(index)
                    keeps = keep_changes and buffer.dtype != torch.bool
                    buffer.copy_(mean + (buffer - bucket.local_of(index)) if keeps else mean)
