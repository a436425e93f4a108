"""What hooks are told about a call, before and after it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from torchcomms._call import Call
from torchcomms._op_name import OpName
from torchcomms._reduce_op import ReduceOp
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._batch import P2POp
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow


# torch imports this, and what a dataclass has written for it takes time: so they have nothing but a constructor.
class _Args:
    __slots__ = ()

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(cast(Any, self)))
        return f"{type(self).__name__}({values})"


@dataclass(slots=True, eq=False, repr=False)
class PreHookArgs(_Args):
    """What all calls have."""

    async_op: bool
    timeout: timedelta | float | None = field(default=None, kw_only=True)
    """What the call was given; None where the communicator's own holds."""


@dataclass(slots=True, eq=False, repr=False)
class SendPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    peer: int


@dataclass(slots=True, eq=False, repr=False)
class RecvPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    peer: int


@dataclass(slots=True, eq=False, repr=False)
class BroadcastPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    root: int


@dataclass(slots=True, eq=False, repr=False)
class AllReducePreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    op: ReduceOp


@dataclass(slots=True, eq=False, repr=False)
class ReducePreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    root: int
    op: ReduceOp


@dataclass(slots=True, eq=False, repr=False)
class AllGatherPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]


@dataclass(slots=True, eq=False, repr=False)
class AllGatherVPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]


@dataclass(slots=True, eq=False, repr=False)
class AllGatherSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


@dataclass(slots=True, eq=False, repr=False)
class ReduceScatterPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    op: ReduceOp


@dataclass(slots=True, eq=False, repr=False)
class ReduceScatterVPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    op: ReduceOp


@dataclass(slots=True, eq=False, repr=False)
class ReduceScatterSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    op: ReduceOp


@dataclass(slots=True, eq=False, repr=False)
class AllToAllSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


@dataclass(slots=True, eq=False, repr=False)
class AllToAllVSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    input_split_sizes: list[int]
    output_split_sizes: list[int]


@dataclass(slots=True, eq=False, repr=False)
class AllToAllPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: list[torch.Tensor]


@dataclass(slots=True, eq=False, repr=False)
class BarrierPreHookArgs(PreHookArgs):
    pass


@dataclass(slots=True, eq=False, repr=False)
class ScatterPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    root: int


@dataclass(slots=True, eq=False, repr=False)
class GatherPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]
    root: int


@dataclass(slots=True, eq=False, repr=False)
class GatherSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    root: int


@dataclass(slots=True, eq=False, repr=False)
class AllGatherPInitPreHookArgs(PreHookArgs):
    output: torch.Tensor


@dataclass(slots=True, eq=False, repr=False)
class AllGatherPExecPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


@dataclass(slots=True, eq=False, repr=False)
class AllGatherPFreePreHookArgs(PreHookArgs):
    output: torch.Tensor


@dataclass(slots=True, eq=False, repr=False)
class BatchOpIssuePreHookArgs(PreHookArgs):
    num_ops: int
    ops: list[P2POp]


@dataclass(slots=True, eq=False, repr=False)
class SplitPreHookArgs(PreHookArgs):
    ranks: list[int]
    name: str


@dataclass(slots=True, eq=False, repr=False)
class NewWindowPreHookArgs(PreHookArgs):
    pass


@dataclass(slots=True, eq=False, repr=False)
class FinalizePreHookArgs(PreHookArgs):
    pass


@dataclass(slots=True, eq=False, repr=False)
class PostHookArgs(_Args):
    """What is told after all calls but ``finalize``."""

    error: BaseException | None = field(default=None, kw_only=True)
    """What the call raises because it could not be begun: its arguments were refused, for example. An operation that was
    begun and failed has the error in its work."""


@dataclass(slots=True, eq=False, repr=False)
class CollectivePostHookArgs(PostHookArgs):
    """After an operation on tensors, or a barrier."""

    work: TorchWork


@dataclass(slots=True, eq=False, repr=False)
class BatchOpIssuePostHookArgs(PostHookArgs):
    work: TorchWork


@dataclass(slots=True, eq=False, repr=False)
class SplitPostHookArgs(PostHookArgs):
    """``new_comm`` is the child, or None where this rank is not in it."""

    new_comm: TorchComm | None


@dataclass(slots=True, eq=False, repr=False)
class NewWindowPostHookArgs(PostHookArgs):
    """``window`` is None if there was an error."""

    window: TorchCommWindow | None


@dataclass(slots=True, eq=False, repr=False)
class FinalizePostHookArgs(_Args):
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
