"""The outer parameters of DiLoCo, and the fragments in which they are averaged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from ringfold.torch.elastic.averages import Averages
from ringfold.torch.elastic.ballot import Ballot
from ringfold.torch.elastic.gradients import Bucket
from ringfold.torch.elastic.replica import Replica
from ringfold.torch.elastic.shards import copies_of, distributed_as, locals_of
from ringfold.torch.elastic.world import World


def outer_module(model: torch.nn.Module) -> torch.nn.Module:
    """A module with the names of the model: copies of the parameters that are trained, in float32 or float64, and its own buffers and
    other parameters."""
    outer = torch.nn.Module()
    persistent = set(model.state_dict())
    for name, parameter in model.named_parameters():
        at, leaf = _place(outer, name)
        at.register_parameter(leaf, _outer_of(name, parameter) if parameter.requires_grad else parameter)
    for name, buffer in model.named_buffers():
        at, leaf = _place(outer, name)
        at.register_buffer(leaf, buffer, persistent=name in persistent)
    return outer


def fragments_of(sizes: Sequence[int], count: int) -> list[range]:
    """Divides parameters of these sizes into contiguous groups of about equal size."""
    if count > len(sizes):
        raise ValueError(f"invalid fragments {count}: the model has {len(sizes)} parameters")
    fragments: list[range] = []
    begin, rest = 0, sum(sizes)
    for left in range(count, 0, -1):
        end, size = begin, 0
        # Each of those that are left gets one at least.
        while end <= len(sizes) - left and (
            end == begin or left == 1 or size + sizes[end] / 2 <= rest / left
        ):
            size += sizes[end]
            end += 1
        fragments.append(range(begin, end))
        begin, rest = end, rest - size
    return fragments


class Fragment:
    """Parameters that are averaged together."""

    def __init__(
        self,
        inner: Sequence[torch.nn.Parameter],
        outer: Sequence[torch.nn.Parameter],
        replica: Replica,
        averages: Callable[[list[Bucket]], Averages],
    ) -> None:
        self._inner, self._outer = list(inner), list(outer)
        tensors = locals_of(outer)
        kinds: dict[Hashable, list[int]] = {}
        copies = [copies_of(parameter, replica) for parameter in outer]
        for number, tensor in enumerate(tensors):
            kinds.setdefault((tensor.dtype, tensor.device, copies[number]), []).append(number)
        buckets = [Bucket(tensors, numbers, copies[numbers[0]]) for numbers in kinds.values()]
        self._bucket_of = [
            next(bucket for bucket in buckets if number in bucket.numbers) for number in range(len(tensors))
        ]
        self.averages = averages(buckets)
        self.weight = 0.0
        """The samples of this replica since the last boundary."""

    @torch.no_grad()
    def start(self, ballot: Ballot, world: World) -> None:
        """Measures the progress, and starts its reduction. A replica without samples has made none."""
        self.averages.begin(ballot.weight, max(1.0, sum(world.batch_sizes)))
        if ballot.weight > 0:
            for number, (inner, outer) in enumerate(self._pairs()):
                progress = _origin(inner, outer).sub_(inner)
                self._bucket_of[number].put(number, progress, self.averages.share)
        self.averages.start(ballot, world)
        self.weight = 0.0

    @torch.no_grad()
    def apply(self, optimizer: torch.optim.Optimizer, has_moved: bool) -> None:
        """Makes the outer step, and sets the model. If it has moved since the boundary, it keeps that progress."""
        if has_moved:
            for number, (inner, outer) in enumerate(self._pairs()):
                # At the boundary the model was at: origin - drift.
                drift = self._bucket_of[number].local_of(number).div_(self.averages.share or 1.0)
                drift.sub_(_origin(inner, outer)).add_(inner)
        for number, parameter in enumerate(self._outer):
            parameter.grad = distributed_as(parameter, self._bucket_of[number].mean_of(number))
        optimizer.step()
        for parameter in self._outer:
            parameter.grad = None
        for number, (inner, outer) in enumerate(self._pairs()):
            inner.copy_(outer + self._bucket_of[number].local_of(number) if has_moved else outer)

    @torch.no_grad()
    def load(self) -> None:
        """Sets the model to the outer parameters."""
        for inner, outer in self._pairs():
            inner.copy_(outer)
        self.weight = 0.0

    def has_finite_progress(self) -> bool:
        """Whether what this rank has sent has no infinity or NaN."""
        return all(bool(torch.isfinite(bucket.local).all()) for bucket in self.averages.buckets)

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(locals_of(self._inner), locals_of(self._outer), strict=True))


def _origin(inner: torch.Tensor, outer: torch.Tensor) -> torch.Tensor:
    """The outer parameters as the model can hold them; a copy."""
    return outer.to(inner.dtype, copy=True).to(outer.dtype)


def _outer_of(name: str, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    if not parameter.dtype.is_floating_point:
        raise ValueError(f"invalid parameter {name} of type {parameter.dtype}: DiLoCo needs floating point")
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    return torch.nn.Parameter(parameter.detach().clone().to(dtype))


def _place(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """The submodule for a name with dots, made if there is none, and the last part of the name."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    return module, leaf
