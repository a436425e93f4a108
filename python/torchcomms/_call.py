"""One operation on its way from a communicator's method to its backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcomms._op_name import OpName
from torchcomms._options import Hints, TimeoutLike
from torchcomms._reduce_op import ReduceOp

if TYPE_CHECKING:
    import torch

    Tensors = torch.Tensor | list[torch.Tensor] | None


@dataclass(slots=True)
class Call:
    """An operation and its arguments. If it works in place, ``input is output``."""

    op: OpName
    async_op: bool
    hints: Hints = None
    timeout: TimeoutLike = None
    input: Tensors = None
    output: Tensors = None
    peer: int = -1
    """The root, the source or the destination."""
    reduce: ReduceOp | None = None
    input_split_sizes: list[int] | None = None
    output_split_sizes: list[int] | None = None


# The fields that each operation uses beside `async_op`, in the order of the hook arguments. Backends written in Python get the
# output before the input.
FIELDS: dict[OpName, tuple[str, ...]] = {
    OpName.send: ("input", "peer"),
    OpName.recv: ("output", "peer"),
    OpName.broadcast: ("output", "peer"),
    OpName.all_reduce: ("output", "reduce"),
    OpName.reduce: ("output", "peer", "reduce"),
    OpName.all_gather: ("input", "output"),
    OpName.all_gather_v: ("input", "output"),
    OpName.all_gather_single: ("input", "output"),
    OpName.reduce_scatter: ("input", "output", "reduce"),
    OpName.reduce_scatter_v: ("input", "output", "reduce"),
    OpName.reduce_scatter_single: ("input", "output", "reduce"),
    OpName.all_to_all_single: ("input", "output"),
    OpName.all_to_all_v_single: ("input", "output", "input_split_sizes", "output_split_sizes"),
    OpName.all_to_all: ("input", "output"),
    OpName.barrier: (),
    OpName.scatter: ("input", "output", "peer"),
    OpName.gather: ("input", "output", "peer"),
    OpName.gather_single: ("input", "output", "peer"),
    OpName.all_gather_p_init: ("output",),
    OpName.all_gather_p_exec: ("input", "output"),
    OpName.all_gather_p_free: ("output",),
}
