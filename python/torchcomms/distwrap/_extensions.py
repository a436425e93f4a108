"""Functions that torch.distributed does not have. They need groups that use torchcomms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from torchcomms._c10d_operations import reduce_op_of
from torchcomms._c10d_work import C10dWork
from torchcomms._device_window import memory_tensor
from torchcomms._window import TorchCommWindow
from torchcomms.distwrap import _quantized
from torchcomms.distwrap._groups import backend_for


def new_window(
    group: dist.ProcessGroup | None = None,
    backend: str | None = None,
    *,
    tensor: torch.Tensor | None = None,
    device: str | torch.device | None = None,
) -> TorchCommWindow:
    """A window for one-sided puts between the ranks of a group, which all call this. Ranks of its methods are group ranks.

    A given ``backend`` must be that of the group's communicator.
    ``device`` is the type of device of its tensors: by default that of ``tensor``, or that of an accelerator if the group has one.
    """
    where = tensor.device if device is None and tensor is not None else device
    comm = backend_for("new_window", group, _type(where)).get_comm()
    if backend is not None and backend != comm.get_backend():
        raise RuntimeError(
            f"invalid backend {backend!r} in new_window: the group's communicator has {comm.get_backend()!r}"
        )
    return comm.new_window(tensor)


def reduce_scatter_quantized(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    seed: int | torch.Tensor | None = None,
) -> dist.Work | None:
    """As ``reduce_scatter_tensor`` of float32 tensors, with half the traffic: the data travels as bfloat16.

    Values are rounded to bfloat16 at random, so that sums are right on average, and are added as float32. ``seed`` makes the
    rounding repeatable. ``op`` is SUM or AVG.
    """
    backend = backend_for("reduce_scatter_quantized", group, input.device.type)
    work, finish = _quantized.reduce_scatter_quantized(
        backend.get_comm(), output, input, reduce_op_of(op), seed, async_op
    )
    if async_op:
        return C10dWork([work], [output], backend._in_order, finish)
    finish()
    return None


def get_mem_allocator(
    group: dist.ProcessGroup | None = None, device: str | torch.device | None = None
) -> Any:
    """The allocator for memory that other ranks can access; see :func:`torchcomms.get_mem_allocator`."""
    return backend_for("get_mem_allocator", group, _type(device)).get_comm().get_mem_allocator()


def register_mem_pool(
    group: dist.ProcessGroup | None, device: str | torch.device | None, pool: Any, symm: bool = False
) -> None:
    """Prepares all memory that a ``torch.cuda.MemPool`` has now, so that the first large operation on it is as fast as later ones.

    ``symm`` has no effect: memory need not be symmetric.
    """
    comm = backend_for("register_mem_pool", group, _type(device) or "cuda").get_comm()
    for tensor in _segments(pool):
        comm.tensor_register(tensor)


def deregister_mem_pool(
    group: dist.ProcessGroup | None, device: str | torch.device | None, pool: Any
) -> None:
    """Makes the other ranks close the memory of a pool, which can then be freed."""
    comm = backend_for("deregister_mem_pool", group, _type(device) or "cuda").get_comm()
    for tensor in _segments(pool):
        comm.tensor_deregister(tensor)


def _type(device: str | torch.device | None) -> str | None:
    return None if device is None else torch.device(device).type


def _segments(pool: Any) -> Iterator[torch.Tensor]:
    if not isinstance(pool, torch.cuda.MemPool):
        raise TypeError(f"invalid pool of type {type(pool).__name__}: must be a torch.cuda.MemPool")
    for segment in pool.snapshot():  # type: ignore[no-untyped-call]
        device = torch.device("cuda", segment["device"])
        yield memory_tensor(segment["address"], segment["total_size"], device, pool)
