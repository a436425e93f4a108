"""The signature of an operation: one line, without what changes from call to call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchcomms._op_name import OpName
from torchcomms._reduce_op import RedOpType, ReduceOp
from torchcomms.hooks._operands import operands, tensors

if TYPE_CHECKING:
    import torch

    from torchcomms.hooks._operands import Operand

_DTYPES = {
    "torch.float32": "f32",
    "torch.float64": "f64",
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.int32": "i32",
    "torch.int64": "i64",
    "torch.int16": "i16",
    "torch.int8": "i8",
    "torch.uint8": "u8",
    "torch.bool": "bool",
    "torch.float8_e4m3fn": "fp8e4m3",
    "torch.float8_e5m2": "fp8e5m2",
}


def signature(op: OpName, args: Any, rank: int) -> str:
    """For example ``all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum``."""
    if op is OpName.batch_op_issue:
        return f"{op.name}|num_ops={args.num_ops}"
    fields = [op.name]
    inputs, outputs = operands(op, args, rank)
    fields += _counts("in", inputs) + _counts("out", outputs)
    for side in ("in", "out"):
        splits = getattr(args, f"{side}put_split_sizes", None)
        if splits is not None:
            fields.append(f"{side}_splits={_listed(splits)}")
    some = tensors(inputs) or tensors(outputs)
    if some:
        fields.append(f"dtype={_DTYPES.get(str(some[0].dtype), 'other')}")
    reduction = getattr(args, "op", None)
    if isinstance(reduction, ReduceOp):
        name = "prod" if reduction.type is RedOpType.PRODUCT else reduction.type.name.lower()
        fields.append(f"red_op={name}")
    for name in ("root", "peer"):
        if hasattr(args, name):
            fields.append(f"{name}={getattr(args, name)}")
    return "|".join(fields)


def addresses(op: OpName, args: Any, rank: int) -> str:
    """The addresses of its tensors: ``in_buf=0x7f…|out_buf=0x7f…``, separated by commas."""
    fields = []
    for side, operand in zip(("in", "out"), operands(op, args, rank)):
        if operand is not None:
            fields.append(f"{side}_buf={','.join(_address(tensor) for tensor in tensors(operand))}")
    return "|".join(fields)


def _counts(side: str, operand: Operand) -> list[str]:
    if operand is None:
        return []
    if isinstance(operand, (list, tuple)):
        return [f"{side}_counts={_listed(tensor.numel() for tensor in tensors(operand))}"]
    return [f"{side}_count={tensor.numel()}" for tensor in tensors(operand)]


def _listed(numbers: Any) -> str:
    return ",".join(map(str, numbers))


def _address(tensor: torch.Tensor) -> str:
    if tensor.is_sparse:
        return _address(tensor._values())
    return f"0x{tensor.data_ptr():x}"
