"""The arguments and results of all-reduces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pccl._enums import DataType, DistributionHint, QuantizationAlgorithm, ReduceOp, require
from pccl._require import require_integer, require_numpy, require_seconds, require_torch
from ringfold import _native

if TYPE_CHECKING:
    import numpy
    import torch


@dataclass(slots=True)
class ReduceOperandDescriptor:
    """The elements of a tensor. The hint is currently unused."""

    datatype: DataType
    distribution_hint: DistributionHint = DistributionHint.NONE


@dataclass(slots=True, init=False)
class QuantizationOptions:
    """The quantisation on the wire. ``QuantizationOptions()`` means none.

    With ``QuantizationAlgorithm.NONE`` the type is ignored. A type without an algorithm means ``MIN_MAX``, an algorithm
    without a type ``UINT8``.

    With ``error_feedback``, what this peer loses by quantising is added to its input of the next all-reduce with the same
    tag, type and size; only for ``SUM`` and ``AVG``. It takes four bytes per element and tag, twice that during an operation,
    until ``Communicator.clear_error_feedback`` or ``leave``. A failed operation leaves it as it was.
    """

    quantized_datatype: DataType
    algorithm: QuantizationAlgorithm
    error_feedback: bool

    def __init__(
        self,
        quantized_datatype: DataType | None = None,
        algorithm: QuantizationAlgorithm | None = None,
        error_feedback: bool = False,
    ) -> None:
        if algorithm is None:
            is_plain = quantized_datatype is None
            algorithm = QuantizationAlgorithm.NONE if is_plain else QuantizationAlgorithm.MIN_MAX
        self.quantized_datatype = DataType.UINT8 if quantized_datatype is None else quantized_datatype
        self.algorithm = algorithm
        self.error_feedback = error_feedback


@dataclass(slots=True)
class ReduceDescriptor:
    """One of several all-reduces. All peers must give the same descriptor."""

    count: int
    op: ReduceOp = ReduceOp.SUM
    tag: int = 0
    operand_descriptor: ReduceOperandDescriptor | None = None
    quantization_options: QuantizationOptions | None = field(default_factory=QuantizationOptions)


@dataclass(slots=True, init=False)
class ReduceOpDescriptor:
    """One of several all-reduces with its tensors.

    ``send`` and ``recv`` may be the same tensor. They are kept alive while they are used. Addresses, also as ``sendbuf_ptr`` and
    ``recvbuf_ptr``, need an ``operand_descriptor``; the caller keeps their memory alive.
    """

    send: Any
    recv: Any
    reduce_descriptor: ReduceDescriptor

    def __init__(
        self,
        send: Any = None,
        recv: Any = None,
        reduce_descriptor: ReduceDescriptor | None = None,
        *,
        sendbuf_ptr: int | None = None,
        recvbuf_ptr: int | None = None,
    ) -> None:
        if not (send is None or sendbuf_ptr is None) or not (recv is None or recvbuf_ptr is None):
            raise TypeError(
                "invalid buffers: pass either send or sendbuf_ptr, and either recv or recvbuf_ptr"
            )
        self.reduce_descriptor = require(reduce_descriptor, ReduceDescriptor, "reduce_descriptor")
        self.send = send if sendbuf_ptr is None else sendbuf_ptr
        self.recv = recv if recvbuf_ptr is None else recvbuf_ptr

    def _memory(self, given: Any) -> Any:
        """A buffer as the native module takes it: an address gets count and type."""
        operand = self.reduce_descriptor.operand_descriptor
        if not isinstance(given, int):
            return given
        if operand is None:
            raise TypeError("invalid buffer, an address: the reduce_descriptor needs an operand_descriptor")
        is_cuda = _native.cuda_device_of(given) is not None
        return _native.Tensor.at(given, self.reduce_descriptor.count, operand.datatype.value, is_cuda, None)

    @classmethod
    def from_torch(
        cls, send: torch.Tensor, recv: torch.Tensor, reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """A descriptor of torch tensors."""
        require_torch(send, "send")
        require_torch(recv, "recv")
        return cls(send, recv, reduce_descriptor)

    @classmethod
    def from_numpy(
        cls, send: numpy.ndarray[Any, Any], recv: numpy.ndarray[Any, Any], reduce_descriptor: ReduceDescriptor
    ) -> ReduceOpDescriptor:
        """A descriptor of numpy arrays."""
        require_numpy(send, "send")
        require_numpy(recv, "recv")
        return cls(send, recv, reduce_descriptor)


@dataclass(frozen=True, slots=True)
class ReduceInfo:
    """The report of an all-reduce: the number of participants, and the payload bytes sent and received."""

    local_world_size: int
    tx_bytes: int
    rx_bytes: int

    @property
    def world_size(self) -> int:
        """An alias of ``local_world_size``."""
        return self.local_world_size


class AllReduceRequest(NamedTuple):
    """An all-reduce for the native module."""

    send: object
    recv: object
    op: int
    tag: int
    dtype: int | None
    elements: int | None
    algorithm: int
    quantized: int
    weight: float | None
    deadline: float | None
    error_feedback: bool
    reproducible: bool
    resume: bool


def make_request(
    send: object,
    recv: object,
    op: ReduceOp,
    tag: int,
    operand: ReduceOperandDescriptor | None,
    quantization: QuantizationOptions | None,
    weight: float | None = None,
    deadline: float | None = None,
    reproducible: bool = False,
    resume: bool = False,
) -> AllReduceRequest:
    """Checks the arguments and converts enums to the values of ``pccl.h``."""
    algorithm, quantized, dtype, error_feedback = 0, 0, None, False
    if quantization is not None:
        require(quantization, QuantizationOptions, "quantization_options")
        algorithm = require(quantization.algorithm, QuantizationAlgorithm, "algorithm").value
        quantized = require(quantization.quantized_datatype, DataType, "quantized_datatype").value
        error_feedback = require(quantization.error_feedback, bool, "error_feedback")
    if operand is not None:
        require(operand, ReduceOperandDescriptor, "operand_descriptor")
        require(operand.distribution_hint, DistributionHint, "distribution_hint")
        dtype = require(operand.datatype, DataType, "datatype").value
    require_integer(tag, "tag", 0)
    require_seconds(deadline, "deadline")
    number = require(op, ReduceOp, "op").value
    require(reproducible, bool, "reproducible")
    require(resume, bool, "resume")
    return AllReduceRequest(
        send,
        recv,
        number,
        tag,
        dtype,
        None,
        algorithm,
        quantized,
        weight,
        deadline,
        error_feedback,
        reproducible,
        resume,
    )
