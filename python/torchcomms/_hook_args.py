"""What hooks are told about a call, before and after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torchcomms._call import Call
from torchcomms._op_name import OpName
from torchcomms._reduce_op import ReduceOp
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._batch import P2POp
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow


@dataclass(slots=True)
class PreHookArgs:
    """What all calls have."""

    async_op: bool
    timeout: timedelta | float | None = field(default=None, kw_only=True)
    """What the call was given; None where the communicator's own holds."""


@dataclass(slots=True)
class SendPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    peer: int


@dataclass(slots=True)
class RecvPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    peer: int


@dataclass(slots=True)
class BroadcastPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    root: int


@dataclass(slots=True)
class AllReducePreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    op: ReduceOp


@dataclass(slots=True)
class ReducePreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    root: int
    op: ReduceOp


@dataclass(slots=True)
class AllGatherPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]


@dataclass(slots=True)
class AllGatherVPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]


@dataclass(slots=True)
class AllGatherSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


@dataclass(slots=True)
class ReduceScatterPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    op: ReduceOp


@dataclass(slots=True)
class ReduceScatterVPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    op: ReduceOp


@dataclass(slots=True)
class ReduceScatterSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    op: ReduceOp


@dataclass(slots=True)
class AllToAllSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


@dataclass(slots=True)
class AllToAllVSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    input_split_sizes: list[int]
    output_split_sizes: list[int]


@dataclass(slots=True)
class AllToAllPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: list[torch.Tensor]


@dataclass(slots=True)
class BarrierPreHookArgs(PreHookArgs):
    pass


@dataclass(slots=True)
class ScatterPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    root: int


@dataclass(slots=True)
class GatherPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]
    root: int


@dataclass(slots=True)
class GatherSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    root: int


@dataclass(slots=True)
class AllGatherPInitPreHookArgs(PreHookArgs):
    output: torch.Tensor


@dataclass(slots=True)
class AllGatherPExecPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


@dataclass(slots=True)
class AllGatherPFreePreHookArgs(PreHookArgs):
    output: torch.Tensor


@dataclass(slots=True)
class BatchOpIssuePreHookArgs(PreHookArgs):
    num_ops: int
    ops: list[P2POp]


@dataclass(slots=True)
class SplitPreHookArgs(PreHookArgs):
    ranks: list[int]
    name: str


@dataclass(slots=True)
class NewWindowPreHookArgs(PreHookArgs):
    pass


@dataclass(slots=True)
class FinalizePreHookArgs(PreHookArgs):
    pass


@dataclass(slots=True)
class CollectivePostHookArgs:
    """After an operation on tensors, or a barrier. If it was refused, or has failed, the work has the error."""

    work: TorchWork


@dataclass(slots=True)
class BatchOpIssuePostHookArgs:
    work: TorchWork


@dataclass(slots=True)
class SplitPostHookArgs:
    """``new_comm`` is the child, or None where this rank is not in it."""

    new_comm: TorchComm | None
    error: BaseException | None = None


@dataclass(slots=True)
class NewWindowPostHookArgs:
    """``window`` is None if there was an error."""

    window: TorchCommWindow | None
    error: BaseException | None = None


@dataclass(slots=True)
class FinalizePostHookArgs:
    pass


# Which fields of a call each kind of arguments takes, beside `async_op`: in the order of its own fields.
_FIELDS: dict[OpName, tuple[type[PreHookArgs], tuple[str, ...]]] = {
    OpName.send: (SendPreHookArgs, ("input", "peer")),
    OpName.recv: (RecvPreHookArgs, ("output", "peer")),
    OpName.broadcast: (BroadcastPreHookArgs, ("output", "peer")),
    OpName.all_reduce: (AllReducePreHookArgs, ("output", "reduce")),
    OpName.reduce: (ReducePreHookArgs, ("output", "peer", "reduce")),
    OpName.all_gather: (AllGatherPreHookArgs, ("input", "output")),
    OpName.all_gather_v: (AllGatherVPreHookArgs, ("input", "output")),
    OpName.all_gather_single: (AllGatherSinglePreHookArgs, ("input", "output")),
    OpName.reduce_scatter: (ReduceScatterPreHookArgs, ("input", "output", "reduce")),
    OpName.reduce_scatter_v: (ReduceScatterVPreHookArgs, ("input", "output", "reduce")),
    OpName.reduce_scatter_single: (ReduceScatterSinglePreHookArgs, ("input", "output", "reduce")),
    OpName.all_to_all_single: (AllToAllSinglePreHookArgs, ("input", "output")),
    OpName.all_to_all_v_single: (
        AllToAllVSinglePreHookArgs,
        ("input", "output", "input_split_sizes", "output_split_sizes"),
    ),
    OpName.all_to_all: (AllToAllPreHookArgs, ("input", "output")),
    OpName.barrier: (BarrierPreHookArgs, ()),
    OpName.scatter: (ScatterPreHookArgs, ("input", "output", "peer")),
    OpName.gather: (GatherPreHookArgs, ("input", "output", "peer")),
    OpName.gather_single: (GatherSinglePreHookArgs, ("input", "output", "peer")),
    OpName.all_gather_p_init: (AllGatherPInitPreHookArgs, ("output",)),
    OpName.all_gather_p_exec: (AllGatherPExecPreHookArgs, ("input", "output")),
    OpName.all_gather_p_free: (AllGatherPFreePreHookArgs, ("output",)),
}


_TAKEN = {op: (kind, attrgetter("async_op", *fields)) for op, (kind, fields) in _FIELDS.items()}


def of_call(call: Call) -> Any:
    """What a pre-hook is told of this call."""
    kind, taken = _TAKEN[call.op]
    fields = taken(call)
    told = kind(*fields) if isinstance(fields, tuple) else kind(fields)
    told.timeout = call.timeout
    return told
