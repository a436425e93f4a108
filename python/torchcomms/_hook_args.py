"""The arguments of pre-hooks and post-hooks."""

from __future__ import annotations

from dataclasses import Field, field
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from torchcomms._call import FIELDS, Call
from torchcomms._op_name import OpName
from torchcomms._reduce_op import ReduceOp
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._batch import P2POp
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow

__all__ = ["AllGatherPExecPreHookArgs", "AllGatherPFreePreHookArgs", "AllGatherPInitPreHookArgs"]
__all__ += ["AllGatherPreHookArgs", "AllGatherSinglePreHookArgs", "AllGatherVPreHookArgs"]
__all__ += ["AllReducePreHookArgs", "AllToAllPreHookArgs", "AllToAllSinglePreHookArgs"]
__all__ += ["AllToAllVSinglePreHookArgs", "BarrierPreHookArgs", "BatchOpIssuePostHookArgs"]
__all__ += ["BatchOpIssuePreHookArgs", "BroadcastPreHookArgs", "CollectivePostHookArgs"]
__all__ += ["FinalizePostHookArgs", "FinalizePreHookArgs", "GatherPreHookArgs"]
__all__ += ["GatherSinglePreHookArgs", "NewWindowPostHookArgs", "NewWindowPreHookArgs", "PreHookArgs"]
__all__ += ["RecvPreHookArgs", "ReducePreHookArgs", "ReduceScatterPreHookArgs"]
__all__ += ["ReduceScatterSinglePreHookArgs", "ReduceScatterVPreHookArgs", "ScatterPreHookArgs"]
__all__ += ["SendPreHookArgs", "SplitPostHookArgs", "SplitPreHookArgs"]


# Like a dataclass, but without generated code: torch imports this module, and generating it for all classes takes time.
@dataclass_transform(eq_default=False, field_specifiers=(field,))
class _Args:
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        for name in cls.__annotations__:
            default = cls.__dict__.get(name)
            if isinstance(default, Field):
                # Keyword only.
                setattr(cls, name, default.default)
            else:
                cls._fields = (*cls._fields, name)

    def __init__(self, *values: Any, **named: Any) -> None:
        if len(values) != len(self._fields):
            raise TypeError(f"invalid arguments of {type(self).__name__}: must be {', '.join(self._fields)}")
        self.__dict__.update(zip(self._fields, values), **named)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


class PreHookArgs(_Args):
    """The arguments of all pre-hooks."""

    async_op: bool
    timeout: timedelta | float | None = field(default=None, kw_only=True)
    """The call's own timeout; None is that of the communicator."""


class SendPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    peer: int


class RecvPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    peer: int


class BroadcastPreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    root: int


class AllReducePreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    op: ReduceOp


class ReducePreHookArgs(PreHookArgs):
    tensor: torch.Tensor
    root: int
    op: ReduceOp


class AllGatherPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]


class AllGatherVPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]


class AllGatherSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


class ReduceScatterPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    op: ReduceOp


class ReduceScatterVPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    op: ReduceOp


class ReduceScatterSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    op: ReduceOp


class AllToAllSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


class AllToAllVSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    input_split_sizes: list[int]
    output_split_sizes: list[int]


class AllToAllPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: list[torch.Tensor]


class BarrierPreHookArgs(PreHookArgs):
    pass


class ScatterPreHookArgs(PreHookArgs):
    input: list[torch.Tensor]
    output: torch.Tensor
    root: int


class GatherPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: list[torch.Tensor]
    root: int


class GatherSinglePreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor
    root: int


class AllGatherPInitPreHookArgs(PreHookArgs):
    output: torch.Tensor


class AllGatherPExecPreHookArgs(PreHookArgs):
    input: torch.Tensor
    output: torch.Tensor


class AllGatherPFreePreHookArgs(PreHookArgs):
    output: torch.Tensor


class BatchOpIssuePreHookArgs(PreHookArgs):
    num_ops: int
    ops: list[P2POp]


class SplitPreHookArgs(PreHookArgs):
    ranks: list[int]
    name: str


class NewWindowPreHookArgs(PreHookArgs):
    pass


class FinalizePreHookArgs(PreHookArgs):
    pass


class PostHookArgs(_Args):
    """The arguments of all post-hooks but that of ``finalize``."""

    error: BaseException | None = field(default=None, kw_only=True)
    """The exception of a call that did not start, because of invalid arguments, for example. The error of an operation that
    started is in its work."""


class CollectivePostHookArgs(PostHookArgs):
    """After an operation on tensors, or a barrier."""

    work: TorchWork


class BatchOpIssuePostHookArgs(PostHookArgs):
    work: TorchWork


class SplitPostHookArgs(PostHookArgs):
    """``new_comm`` is the child; None if this rank is not in it."""

    new_comm: TorchComm | None


class NewWindowPostHookArgs(PostHookArgs):
    """``window`` is None if there was an error."""

    window: TorchCommWindow | None


class FinalizePostHookArgs(_Args):
    pass


def _kind_of(op: OpName) -> type[PreHookArgs]:
    """The class that is named after the operation."""
    kind: type[PreHookArgs] = globals()[op.name.title().replace("_", "") + "PreHookArgs"]
    return kind


_READERS = {op: (_kind_of(op), attrgetter("async_op", *fields)) for op, fields in FIELDS.items()}


def of_call(call: Call) -> Any:
    """The pre-hook arguments of a call."""
    kind, read = _READERS[call.op]
    fields = read(call)
    args = kind(*fields) if isinstance(fields, tuple) else kind(fields)
    args.timeout = call.timeout
    return args
