"""The input and output tensors of an operation, from its pre-hook arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchcomms._batch import P2POpType
from torchcomms._op_name import OpName

if TYPE_CHECKING:
    import torch

    Operand = torch.Tensor | list[torch.Tensor] | None

_IN_PLACE = frozenset({OpName.all_reduce, OpName.broadcast, OpName.reduce})


def operands(op: OpName, args: Any, rank: int) -> tuple[Operand, Operand]:
    """Inputs and outputs: a tensor, a list, or None. What is ignored on ranks other than the root is an empty list."""
    if op in _IN_PLACE:
        return args.tensor, args.tensor
    if op is OpName.send:
        return args.tensor, None
    if op is OpName.recv:
        return None, args.tensor
    if op is OpName.batch_op_issue:
        return (
            [one.tensor for one in args.ops if one.type is P2POpType.SEND],
            [one.tensor for one in args.ops if one.type is P2POpType.RECV],
        )
    inputs, outputs = getattr(args, "input", None), getattr(args, "output", None)
    if op is OpName.scatter and args.root != rank:
        inputs = []
    elif (op is OpName.gather or op is OpName.gather_single) and args.root != rank:
        outputs = []
    return inputs, outputs


def tensors(operand: Operand) -> list[torch.Tensor]:
    """The tensors of inputs or outputs. Other objects are left out; the backend rejects them later."""
    every: Sequence[torch.Tensor | None] = operand if isinstance(operand, (list, tuple)) else (operand,)
    return [tensor for tensor in every if tensor is not None and hasattr(tensor, "dtype")]
