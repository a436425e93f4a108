"""The operations of torch.distributed, which may use groups of torchcomms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torchcomms._c10d_backend import backend_of
from torchcomms.distwrap._backend import GuardedBackend
from torchcomms.distwrap._permission import Permission, permitted

all_reduce = permitted(dist.all_reduce)
broadcast = permitted(dist.broadcast)
reduce = permitted(dist.reduce)
all_gather_into_tensor = permitted(dist.all_gather_into_tensor)
reduce_scatter = permitted(dist.reduce_scatter)
reduce_scatter_tensor = permitted(dist.reduce_scatter_tensor)
all_to_all = permitted(dist.all_to_all)
all_to_all_single = permitted(dist.all_to_all_single)
scatter = permitted(dist.scatter)
gather = permitted(dist.gather)
barrier = permitted(dist.barrier)
monitored_barrier = permitted(dist.monitored_barrier)
send = permitted(dist.send)
recv = permitted(dist.recv)
isend = permitted(dist.isend)
irecv = permitted(dist.irecv)
batch_isend_irecv = permitted(dist.batch_isend_irecv)
all_gather_object = permitted(dist.all_gather_object)
gather_object = permitted(dist.gather_object)
scatter_object_list = permitted(dist.scatter_object_list)
broadcast_object_list = permitted(dist.broadcast_object_list)
send_object_list = permitted(dist.send_object_list)
recv_object_list = permitted(dist.recv_object_list)

# Not all versions of torch have these, or they are private.
OTHERS = frozenset(
    {
        *("all_reduce_coalesced", "all_gather_coalesced", "all_gather_single", "reduce_scatter_single"),
        *("gather_single", "gather_into_tensor", "_all_gather_base", "_reduce_scatter_base"),
    }
)

_all_gather = permitted(dist.all_gather)


@functools.wraps(dist.all_gather)
def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    sizes, chosen = {one.numel() for one in tensor_list}, group or dist.group.WORLD
    is_plain = isinstance(chosen, dist.ProcessGroup) and not isinstance(backend_of(chosen), GuardedBackend)
    if len(sizes) < 2 or not is_plain or dist.get_backend(group) != "gloo":
        return _all_gather(tensor_list, tensor, group, async_op)
    # Torch's gloo has no all-gather of different sizes.
    tensor_list[dist.get_rank(group)].copy_(tensor)
    works: list[Any] = [
        dist.broadcast(one, group=group, async_op=True, group_src=rank)
        for rank, one in enumerate(tensor_list)
    ]
    for work in works[: -1 if async_op else None]:
        work.wait()
    return works[-1] if async_op else None


_TORCHS: dict[Callable[..., Any], Callable[..., Any]] = {isend: dist.isend, irecv: dist.irecv}


class P2POp(dist.P2POp):
    """A transfer of :func:`batch_isend_irecv`; ``op`` is ``isend`` or ``irecv``, of this package or of torch.distributed."""

    def __new__(cls, op: Callable[..., Any], *arguments: Any, **named: Any) -> P2POp:
        made: Any = super().__new__(cls, _TORCHS.get(op, op), *arguments, **named)
        ours: P2POp = made
        return ours

    def __init__(
        self,
        op: Callable[..., Any],
        tensor: torch.Tensor,
        peer: int | None = None,
        group: dist.ProcessGroup | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        super().__init__(_TORCHS.get(op, op), tensor, peer, group, tag, group_peer)


@contextmanager
def _coalescing_manager(*arguments: Any, **named: Any) -> Iterator[Any]:
    with Permission(), c10d._coalescing_manager(*arguments, **named) as manager:
        yield manager
