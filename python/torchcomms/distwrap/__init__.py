"""The functions of ``torch.distributed``, on torch's own process groups or on communicators of torchcomms.

    from torchcomms import distwrap as dist

    dist.init_process_group("gloo", use_torchcomms=True)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    dist.destroy_process_group()

Names, signatures and results are those of ``torch.distributed``; what is not defined here is torch's own. With
``use_torchcomms=False`` this package only passes calls on. With ``use_torchcomms=True``, operations of this package run on the
communicators of the group, and the same operations of ``torch.distributed`` are refused.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as _dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed import (
    GroupMember,
    ProcessGroup,
    ReduceOp,
    Work,
    destroy_process_group,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    is_available,
    is_initialized,
)

from torchcomms.distwrap._extensions import (
    deregister_mem_pool,
    get_mem_allocator,
    new_window,
    reduce_scatter_quantized,
    register_mem_pool,
)
from torchcomms.distwrap._groups import (
    get_comm,
    init_process_group,
    new_group,
    split_group,
    uses_torchcomms,
)
from torchcomms.distwrap._operations import (
    OTHERS as _OTHERS,
)
from torchcomms.distwrap._operations import (
    P2POp,
    _coalescing_manager,
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    broadcast_object_list,
    gather,
    gather_object,
    irecv,
    isend,
    monitored_barrier,
    recv,
    recv_object_list,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    scatter_object_list,
    send,
    send_object_list,
)
from torchcomms.distwrap._permission import permitted as _permitted

__all__ = ["GroupMember", "HashStore", "P2POp", "ProcessGroup", "ReduceOp", "Store", "Work"]
__all__ += ["_coalescing_manager", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce"]
__all__ += ["all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast"]
__all__ += ["broadcast_object_list", "deregister_mem_pool", "destroy_process_group", "gather"]
__all__ += ["gather_object", "get_comm", "get_mem_allocator", "get_process_group_ranks", "get_rank"]
__all__ += ["get_world_size", "group", "init_process_group", "irecv", "is_available", "is_initialized"]
__all__ += ["isend", "monitored_barrier", "new_group", "new_window", "recv", "recv_object_list", "reduce"]
__all__ += ["reduce_scatter", "reduce_scatter_quantized", "reduce_scatter_tensor", "register_mem_pool"]
__all__ += ["scatter", "scatter_object_list", "send", "send_object_list", "split_group", "uses_torchcomms"]


def __getattr__(name: str) -> Any:
    try:
        found = getattr(_dist, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    if name in _OTHERS:
        found = globals()[name] = _permitted(found)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_dist)})
