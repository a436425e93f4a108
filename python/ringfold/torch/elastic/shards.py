"""What a rank of a replica holds of a tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from ringfold.torch.elastic.replica import Replica
from torch.distributed.tensor import DTensor, Replicate


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of this rank: the shard of a tensor that is distributed over the replica."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def locals_of(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The shards of tensors."""
    return [local(tensor) for tensor in tensors]


def distributed_as(tensor: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor that is distributed over the replica as another one; this is the part of this rank."""
    if not isinstance(tensor, DTensor):
        return part
    return DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """The shard of a parameter's gradient, placed as the parameter is."""
    gradient = parameter.grad
    if (
        isinstance(gradient, DTensor)
        and isinstance(parameter, DTensor)
        and gradient.placements != parameter.placements
    ):
        gradient = parameter.grad = gradient.redistribute(placements=parameter.placements)
    return None if gradient is None else local(gradient)


def copies_of(tensor: torch.Tensor, replica: Replica) -> tuple[dist.ProcessGroup, ...]:
    """The groups of ranks of this replica that hold the same part of a tensor: one for each dimension of the mesh in which it is
    replicated."""
    if replica.ranks == 1:
        return ()
    if not isinstance(tensor, DTensor):
        return (replica.group,)
    mesh, placements = tensor.device_mesh, tensor.placements
    return tuple(
        mesh.get_group(dimension)
        for dimension, placement in enumerate(placements)
        if isinstance(placement, Replicate) and mesh.size(dimension) > 1
    )
