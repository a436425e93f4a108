"""One operation, checked, as the engine takes it. Needs torch, so it is imported with the first communicator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchcomms._call import Call
from torchcomms._dtypes import MOVED, REDUCED, SUM, U8, not_reduced
from torchcomms._hints import TAG
from torchcomms._operands import SHAPES, Counts, check_peer
from torchcomms._options import seconds
from torchcomms._reduce_op import RedOpType, ReduceOp

Tensors = Sequence[torch.Tensor]
Spans = list[tuple[int, int]]
# What the native module is asked for: operation, type, reduction, peer, counts, others, inputs, outputs, timeout,
# tag.
Order = tuple[str, int, int, int, Counts, Counts, Spans, Spans, float | None, int]


class Task:
    """What is to be done, with which tensors. Where an operation works in place, ``inputs is outputs``."""

    __slots__ = (
        *("counts", "device", "dtype", "inputs", "is_transfer", "native"),
        *("others", "outputs", "peer", "reduce", "tag", "timeout"),
    )

    def __init__(self, call: Call, rank: int, size: int) -> None:
        shape = SHAPES[call.op]
        self.native = shape.native
        self.is_transfer = shape.is_transfer
        self.peer = call.peer
        if shape.peer:
            check_peer(shape.peer, call.peer, rank, size)
        self.timeout = None if call.timeout is None else seconds(call.timeout)
        self.inputs, self.outputs, self.counts, self.others = shape.operands(call, rank, size)
        self.device: torch.device | None = None
        """Where the tensors are; None if that is the host's memory, or if there are none."""
        self.dtype = U8
        self.reduce = SUM
        if shape.reduces:
            self._reduce_by(call.reduce)
        elif self.inputs or self.outputs:
            self._move()
        self.tag = _tag(call.hints) if shape.is_transfer and call.hints is not None else 0

    def order(self) -> Order:
        """What the native module is asked for. The tensors have to live until the end."""
        inputs = _spans(self.inputs)
        outputs = inputs if self.inputs is self.outputs else _spans(self.outputs)
        return (
            self.native,
            self.dtype,
            self.reduce,
            self.peer,
            self.counts,
            self.others,
            inputs,
            outputs,
            self.timeout,
            self.tag,
        )

    def _reduce_by(self, op: ReduceOp | None) -> None:
        if not isinstance(op, ReduceOp):
            raise RuntimeError(f"op is a torchcomms.ReduceOp, not {op!r}")
        dtype = self._agree()
        numbers = REDUCED.get((dtype, op.type))
        if numbers is None:
            raise not_reduced(dtype, op.type)
        self.dtype, self.reduce = numbers
        if dtype.is_complex and self.counts is not None:
            self.counts = [count * 2 for count in self.counts]
        if op.type is RedOpType.PREMUL_SUM:
            factor = _factor(op)
            self.inputs = [_scaled(tensor, factor) for tensor in self.inputs]

    def _move(self) -> None:
        dtype = self._agree()
        number = MOVED.get(dtype)
        if number is not None:
            self.dtype = number
            return
        # As bytes, whatever they mean.
        if self.counts is not None:
            self.counts = [count * dtype.itemsize for count in self.counts]
        if self.others is not None:
            self.others = [count * dtype.itemsize for count in self.others]

    def _agree(self) -> torch.dtype:
        """The type of all the tensors, if they are of one and on one device, and nothing else is wrong with them."""
        inputs, outputs = self.inputs, self.outputs
        first = (outputs or inputs)[0]
        dtype = first.dtype
        if not first.is_cpu:
            self.device = first.device
        for tensor in outputs if inputs is outputs else (*outputs, *inputs):
            if tensor.dtype is not dtype:
                raise RuntimeError(f"the tensors are of different types: {dtype} and {tensor.dtype}")
            if not tensor.is_contiguous():
                raise RuntimeError(
                    f"a tensor of shape {list(tensor.shape)} is not contiguous: its strides are {list(tensor.stride())}"
                )
            if tensor is not first and tensor.device != first.device:
                raise RuntimeError(
                    f"the tensors are on different devices: {first.device} and {tensor.device}"
                )
        if dtype.is_complex and any(tensor.is_conj() for tensor in (*inputs, *outputs)):
            raise RuntimeError("a tensor is a view of its conjugate: resolve_conj() makes it an ordinary one")
        return dtype


def _spans(tensors: Tensors) -> Spans:
    spans = []
    for tensor in tensors:
        address, nbytes = tensor.data_ptr(), tensor.nbytes
        if not address and nbytes:
            raise RuntimeError(f"a tensor on {tensor.device} has no memory here ({type(tensor).__name__})")
        spans.append((address, nbytes))
    return spans


def _tag(hints: dict[str, str]) -> int:
    """Which receive a send is meant for."""
    tag = hints.get(TAG, "0")
    if not tag.isdecimal():
        raise RuntimeError(f"the tag {tag!r} is no number from 0 on")
    return int(tag)


def _factor(op: ReduceOp) -> float:
    factor = op.factor
    if isinstance(factor, torch.Tensor) and (factor.numel() != 1 or factor.dim() > 1):
        raise RuntimeError(
            f"the factor of PREMUL_SUM is one number, not a tensor of shape {list(factor.shape)}"
        )
    if factor is None:
        raise RuntimeError("PREMUL_SUM needs a factor: ReduceOp.PREMUL_SUM(factor)")
    return float(factor)


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    with torch.no_grad():
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return tensor * factor
        if factor.is_integer():
            return tensor * int(factor)
        return (tensor.double() * factor).to(tensor.dtype)
