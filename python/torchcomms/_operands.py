"""The tensors of each operation as the engine takes them: inputs, outputs, and elements per rank.

Invalid arguments raise here, before other ranks see the call. Needs torch, so it is imported with the first communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from ringfold._native import OPERATIONS

from torchcomms._call import Call
from torchcomms._op_name import OpName

Counts = list[int] | None


class Operands(NamedTuple):
    """The inputs and outputs of an operation."""

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    counts: Counts = None
    """Elements that each rank sends or gets, if that differs."""
    others: Counts = None
    """Elements from each rank, if ``counts`` are those to each rank."""


class OperationSpec:
    """An operation of the engine, and how to find its tensors in a call."""

    __slots__ = ("is_transfer", "native", "operands", "peer", "reduces")

    def __init__(self, native: str, operands: Callable[[Call, int, int], Operands]) -> None:
        arguments = OPERATIONS[native]
        self.native = native
        self.operands = operands
        """Finds the tensors in a call, for a rank and a number of ranks."""
        self.peer = next((role for role in arguments if role in ("root", "src", "dst")), "")
        """The role of the other rank: ``root``, ``src``, ``dst``, or empty."""
        self.reduces = "reduce" in arguments
        self.is_transfer = "tag" in arguments


def _send(call: Call, rank: int, size: int) -> Operands:
    return Operands((_tensor(call.input, "tensor"),), ())


def _recv(call: Call, rank: int, size: int) -> Operands:
    return Operands((), (_tensor(call.output, "tensor"),))


def _in_place(call: Call, rank: int, size: int) -> Operands:
    one = (_tensor(call.output, "tensor"),)
    return Operands(one, one)


def _nothing(call: Call, rank: int, size: int) -> Operands:
    return Operands((), ())


def _all_gather(call: Call, rank: int, size: int) -> Operands:
    own = _tensor(call.input, "tensor")
    parts = _parts(call.output, "tensor_list", size)
    _require_equal(parts, "tensor_list", own, "tensor")
    return Operands((own,), parts)


def _all_gather_v(call: Call, rank: int, size: int) -> Operands:
    own = _tensor(call.input, "tensor")
    parts = _parts(call.output, "tensor_list", size)
    _require_one(parts[rank], f"tensor_list[{rank}], which is this rank's,", own, "tensor")
    return Operands((own,), parts, [part.numel() for part in parts])


def _all_gather_single(call: Call, rank: int, size: int) -> Operands:
    own, whole = _tensor(call.input, "input"), _tensor(call.output, "output")
    _require_times(whole, "output", own, "input", size)
    return Operands((own,), (whole,))


def _reduce_scatter(call: Call, rank: int, size: int) -> Operands:
    own = _tensor(call.output, "output")
    parts = _parts(call.input, "input_list", size)
    _require_equal(parts, "input_list", own, "output")
    return Operands(parts, (own,))


def _reduce_scatter_v(call: Call, rank: int, size: int) -> Operands:
    own = _tensor(call.output, "output")
    parts = _parts(call.input, "input_list", size)
    _require_one(parts[rank], f"input_list[{rank}], which is this rank's,", own, "output")
    return Operands(parts, (own,), [part.numel() for part in parts])


def _reduce_scatter_single(call: Call, rank: int, size: int) -> Operands:
    own, whole = _tensor(call.output, "output"), _tensor(call.input, "input")
    _require_times(whole, "input", own, "output", size)
    return Operands((whole,), (own,))


def _all_to_all_single(call: Call, rank: int, size: int) -> Operands:
    sent, received = _tensor(call.input, "input"), _tensor(call.output, "output")
    _require_one(received, "output", sent, "input")
    if sent.numel() % size:
        raise RuntimeError(
            f"invalid input: {sent.numel()} elements cannot be split evenly among {size} ranks"
        )
    return Operands((sent,), (received,))


def _all_to_all(call: Call, rank: int, size: int) -> Operands:
    sent = _parts(call.input, "input_tensor_list", size)
    received = _parts(call.output, "output_tensor_list", size)
    _require_one(received[rank], f"output_tensor_list[{rank}]", sent[rank], f"input_tensor_list[{rank}]")
    return Operands(sent, received, [part.numel() for part in sent], [part.numel() for part in received])


def _all_to_all_v_single(call: Call, rank: int, size: int) -> Operands:
    sent, received = _tensor(call.input, "input"), _tensor(call.output, "output")
    goes = _elements(call.input_split_sizes, "input_split_sizes", sent, "input", size)
    comes = _elements(call.output_split_sizes, "output_split_sizes", received, "output", size)
    if goes[rank] != comes[rank]:
        raise RuntimeError(
            f"invalid split sizes: rank {rank} sends itself {goes[rank]} elements (input_split_sizes[{rank}]), but receives "
            f"{comes[rank]} (output_split_sizes[{rank}])"
        )
    # Elements after the last part are ignored.
    return Operands((_head(sent, sum(goes)),), (_head(received, sum(comes)),), goes, comes)


def _scatter(call: Call, rank: int, size: int) -> Operands:
    own = _tensor(call.output, "output_tensor")
    if rank != call.peer:
        return Operands((), (own,))
    parts = _parts(call.input, "input_tensor_list", size)
    _require_equal(parts, "input_tensor_list", own, "output_tensor")
    return Operands(parts, (own,))


def _gather(call: Call, rank: int, size: int) -> Operands:
    own = _tensor(call.input, "input_tensor")
    if rank != call.peer:
        return Operands((own,), ())
    parts = _parts(call.output, "output_tensor_list", size)
    _require_equal(parts, "output_tensor_list", own, "input_tensor")
    return Operands((own,), parts)


def _gather_single(call: Call, rank: int, size: int) -> Operands:
    own = _tensor(call.input, "input")
    if rank != call.peer:
        return Operands((own,), ())
    whole = _tensor(call.output, "output")
    _require_times(whole, "output", own, "input", size)
    return Operands((own,), (whole,))


SPECS: dict[OpName, OperationSpec] = {
    OpName.send: OperationSpec("send", _send),
    OpName.recv: OperationSpec("recv", _recv),
    OpName.broadcast: OperationSpec("broadcast", _in_place),
    OpName.all_reduce: OperationSpec("all_reduce", _in_place),
    OpName.reduce: OperationSpec("reduce", _in_place),
    OpName.all_gather: OperationSpec("all_gather", _all_gather),
    OpName.all_gather_v: OperationSpec("all_gather_v", _all_gather_v),
    OpName.all_gather_single: OperationSpec("all_gather", _all_gather_single),
    OpName.all_gather_p_exec: OperationSpec("all_gather", _all_gather_single),
    OpName.reduce_scatter: OperationSpec("reduce_scatter", _reduce_scatter),
    OpName.reduce_scatter_v: OperationSpec("reduce_scatter_v", _reduce_scatter_v),
    OpName.reduce_scatter_single: OperationSpec("reduce_scatter", _reduce_scatter_single),
    OpName.all_to_all_single: OperationSpec("all_to_all", _all_to_all_single),
    OpName.all_to_all_v_single: OperationSpec("all_to_all_v", _all_to_all_v_single),
    OpName.all_to_all: OperationSpec("all_to_all_v", _all_to_all),
    OpName.barrier: OperationSpec("barrier", _nothing),
    OpName.scatter: OperationSpec("scatter", _scatter),
    OpName.gather: OperationSpec("gather", _gather),
    OpName.gather_single: OperationSpec("gather", _gather_single),
}


def check_peer(what: str, peer: int, rank: int, size: int) -> None:
    """Rejects a root, source or destination that is not a rank, and a transfer of a rank with itself."""
    if not hasattr(peer, "__index__") or not 0 <= peer < size:
        raise RuntimeError(f"{what} {peer} is out of range: ranks are 0 to {size - 1}")
    if peer == rank and what != "root":
        verb = "send to" if what == "dst" else "receive from"
        raise RuntimeError(f"invalid {what} {peer}: this rank cannot {verb} itself")


def _tensor(given: object, name: str) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        return given
    raise RuntimeError(f"invalid {name} of type {type(given).__name__}: must be a tensor")


def _parts(given: object, name: str, size: int) -> list[torch.Tensor]:
    if not isinstance(given, (list, tuple)):
        raise RuntimeError(f"invalid {name} of type {type(given).__name__}: must be a list of tensors")
    if len(given) != size:
        raise RuntimeError(f"invalid {name}: {len(given)} tensors, but there are {size} ranks")
    return [_tensor(part, f"{name}[{index}]") for index, part in enumerate(given)]


def _require_equal(parts: list[torch.Tensor], name: str, own: torch.Tensor, own_name: str) -> None:
    elements = own.numel()
    for index, part in enumerate(parts):
        if part.numel() != elements:
            _require_one(part, f"{name}[{index}]", own, own_name)


def _require_one(part: torch.Tensor, name: str, own: torch.Tensor, own_name: str) -> None:
    if part.numel() != own.numel():
        raise RuntimeError(
            f"sizes differ: {name} has {part.numel()} elements, but {own_name} has {own.numel()}"
        )


def _require_times(whole: torch.Tensor, name: str, own: torch.Tensor, own_name: str, size: int) -> None:
    if whole.numel() != own.numel() * size:
        raise RuntimeError(
            f"invalid size of {name}: {whole.numel()} elements, but {size} ranks with {own.numel()} elements of {own_name} need "
            f"{own.numel() * size}"
        )


def _elements(given: object, name: str, tensor: torch.Tensor, tensor_name: str, size: int) -> list[int]:
    """The elements of each part, from rows of the first dimension."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(rows, int) for rows in given):
        raise RuntimeError(f"invalid {name} {given!r}: must be a list of numbers")
    if len(given) != size:
        raise RuntimeError(f"invalid {name}: {len(given)} numbers, but there are {size} ranks")
    rows_there = tensor.size(0) if tensor.dim() else 1
    if min(given) < 0:
        raise RuntimeError(f"invalid {name} {list(given)}: must be >= 0")
    if sum(given) > rows_there:
        raise RuntimeError(f"invalid {name}: sum {sum(given)}, but {tensor_name} has {rows_there} rows")
    row = tensor.numel() // rows_there if rows_there else 0
    return [rows * row for rows in given]


def _head(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    if elements == tensor.numel() or not tensor.is_contiguous():
        return tensor
    return tensor.view(-1)[:elements]
