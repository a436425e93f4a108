"""One operation, as it goes from a communicator's method to its backend: all of them take this one road."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torchcomms._op_name import OpName
from torchcomms._reduce_op import ReduceOp

if TYPE_CHECKING:
    import torch

    Tensors = torch.Tensor | list[torch.Tensor] | None


@dataclass(slots=True)
class Call:
    """What was asked for. Where an operation works in place, ``input is output``."""

    op: OpName
    async_op: bool
    input: Tensors = None
    output: Tensors = None
    peer: int = -1
    """The root, the source or the destination."""
    reduce: ReduceOp | None = None
    input_split_sizes: list[int] | None = None
    output_split_sizes: list[int] | None = None
    hints: dict[str, str] | None = None
    timeout: timedelta | float | None = None


# Which of these fields each operation uses beside `async_op`, in the order in which hooks are told of them. Backends written in
# Python get what is written before what is read.
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
