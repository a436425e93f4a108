"""A checked operation, as the engine takes it. Needs torch, so it is imported with the first communicator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchcomms._call import Call
from torchcomms._dtypes import MOVED, REDUCED, SUM, U8, not_reduced
from torchcomms._hints import tag_of, wants_high_priority
from torchcomms._operands import SPECS, Counts, check_peer
from torchcomms._options import seconds
from torchcomms._reduce_op import RedOpType, ReduceOp

Tensors = Sequence[torch.Tensor]
Spans = list[tuple[int, int]]
# The arguments of the native module: operation, dtype, reduce, peer, counts, others, inputs, outputs, timeout, tag.
NativeArguments = tuple[str, int, int, int, Counts, Counts, Spans, Spans, float | None, int]

_STRIDED = torch.strided


class Task:
    """A checked operation with its tensors. If it works in place, ``inputs is outputs``."""

    __slots__ = (
        *("counts", "device", "dtype", "inputs", "is_transfer", "native"),
        *("is_urgent", "others", "outputs", "peer", "reduce", "tag", "timeout"),
    )

    def __init__(self, call: Call, rank: int, size: int, tag: int = 0) -> None:
        spec = SPECS[call.op]
        self.native = spec.native
        self.is_transfer = spec.is_transfer
        self.peer = call.peer
        if spec.peer:
            check_peer(spec.peer, call.peer, rank, size)
        self.timeout = None if call.timeout is None else seconds(call.timeout)
        self.inputs, self.outputs, self.counts, self.others = spec.operands(call, rank, size)
        self.device: torch.device | None = None
        """The device of the tensors; None for host memory, or without tensors."""
        self.dtype = U8
        self.reduce = SUM
        if spec.reduces:
            self._set_reduction(call.reduce)
        elif self.inputs or self.outputs:
            self._set_dtype()
        self.is_urgent = wants_high_priority(call.hints)
        """The priority of its stream; None for that of the communicator."""
        # Without a tag of its own, a transfer has that of the communicator.
        self.tag = tag_of(call.hints, tag) if spec.is_transfer else 0

    def native_arguments(self) -> NativeArguments:
        """The arguments for the native module. The tensors have to live until the end."""
        inputs = spans(self.inputs)
        outputs = inputs if self.inputs is self.outputs else spans(self.outputs)
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

    def _set_reduction(self, op: ReduceOp | None) -> None:
        if not isinstance(op, ReduceOp):
            raise RuntimeError(f"invalid op {op!r}: must be a torchcomms.ReduceOp")
        dtype = self._common_dtype()
        numbers = REDUCED.get((dtype, op.type))
        if numbers is None:
            raise not_reduced(dtype, op.type)
        self.dtype, self.reduce = numbers
        if dtype.is_complex and self.counts is not None:
            self.counts = [count * 2 for count in self.counts]
        if op.type is RedOpType.PREMUL_SUM:
            factor = _factor(op, self.device)
            self.inputs = [_scaled(tensor, factor) for tensor in self.inputs]

    def _set_dtype(self) -> None:
        dtype = self._common_dtype()
        number = MOVED.get(dtype)
        if number is not None:
            self.dtype = number
            return
        # Moved as bytes.
        if self.counts is not None:
            self.counts = [count * dtype.itemsize for count in self.counts]
        if self.others is not None:
            self.others = [count * dtype.itemsize for count in self.others]

    def _common_dtype(self) -> torch.dtype:
        """The element type of all tensors. Raises unless they are contiguous, of one type, and on one device."""
        inputs, outputs = self.inputs, self.outputs
        first = (outputs or inputs)[0]
        dtype = first.dtype
        if not first.is_cpu:
            self.device = first.device
        for tensor in outputs if inputs is outputs else (*outputs, *inputs):
            if tensor.dtype is not dtype:
                raise RuntimeError(f"tensors of different types: {dtype} and {tensor.dtype}")
            if tensor.layout is not _STRIDED:
                raise RuntimeError(
                    f"unsupported tensor layout {tensor.layout}: convert it by to_dense(); only all_reduce and reduce with SUM take sparse "
                    "COO tensors"
                )
            if not tensor.is_contiguous():
                strides = list(tensor.stride())
                raise RuntimeError(
                    f"tensor of shape {list(tensor.shape)} is not contiguous: strides {strides}"
                )
            if tensor is not first and tensor.device != first.device:
                raise RuntimeError(f"tensors on different devices: {first.device} and {tensor.device}")
        if dtype.is_complex and any(tensor.is_conj() for tensor in (*inputs, *outputs)):
            raise RuntimeError("unsupported conjugate view: call resolve_conj() on the tensor first")
        return dtype


def spans(tensors: Tensors) -> Spans:
    """Address and size of each tensor."""
    spans = []
    for tensor in tensors:
        address, nbytes = tensor.data_ptr(), tensor.nbytes
        if not address and nbytes:
            raise RuntimeError(f"tensor on {tensor.device} has no memory here ({type(tensor).__name__})")
        spans.append((address, nbytes))
    return spans


def _factor(op: ReduceOp, device: torch.device | None) -> float | torch.Tensor:
    """The factor of PREMUL_SUM; a tensor of one number if it is on the device of the operation, so that the host does not wait."""
    factor = op.factor
    if isinstance(factor, torch.Tensor) and (factor.numel() != 1 or factor.dim() > 1):
        raise RuntimeError(
            f"invalid factor of PREMUL_SUM, a tensor of shape {list(factor.shape)}: must be one number"
        )
    if factor is None:
        raise RuntimeError("PREMUL_SUM has no factor: use ReduceOp.PREMUL_SUM(factor)")
    if isinstance(factor, torch.Tensor) and factor.device == device:
        return factor.detach().reshape(())
    return float(factor)


def _scaled(tensor: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if isinstance(factor, torch.Tensor):
            if tensor.dtype.is_complex:
                return tensor * factor
            if tensor.dtype.is_floating_point:
                # Otherwise the factor would be rounded to the type of the tensor.
                wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
                return (wide * factor).to(tensor.dtype)
            exact = tensor * factor.to(torch.int64).to(tensor.dtype)
            return torch.where(factor == factor.trunc(), exact, (tensor.double() * factor).to(tensor.dtype))
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return tensor * factor
        if factor.is_integer():
            return tensor * int(factor)
        return (tensor.double() * factor).to(tensor.dtype)
