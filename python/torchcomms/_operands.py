"""The tensors of each operation as the engine takes them: which it reads and writes, and how many elements from whom.

What a call can get wrong is found here, before anyone else is disturbed. Needs torch, so it is imported with the first communicator.
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
    """What an operation reads and writes."""

    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    counts: Counts = None
    """How many elements each rank brings or gets, where that differs."""
    others: Counts = None
    """How many come from each, where ``counts`` says how many go to it."""


class Shape:
    """What an operation looks like to the engine. What it takes beside its tensors is known by its native name."""

    __slots__ = ("is_transfer", "native", "operands", "peer", "reduces")

    def __init__(self, native: str, operands: Callable[[Call, int, int], Operands]) -> None:
        takes = OPERATIONS[native]
        self.native = native
        self.operands = operands
        """Finds its tensors, for a rank and a number of ranks."""
        self.peer = next((role for role in takes if role in ("root", "src", "dst")), "")
        """What the other rank is: a root, a source or a destination."""
        self.reduces = "reduce" in takes
        self.is_transfer = "tag" in takes


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
        raise RuntimeError(f"input has {sent.numel()} elements, which {size} ranks can't share evenly")
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
            f"this rank sends itself {goes[rank]} elements by input_split_sizes[{rank}], but gets {comes[rank]} by "
            f"output_split_sizes[{rank}]"
        )
    # What lies behind the last part is nobody's business.
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


SHAPES: dict[OpName, Shape] = {
    OpName.send: Shape("send", _send),
    OpName.recv: Shape("recv", _recv),
    OpName.broadcast: Shape("broadcast", _in_place),
    OpName.all_reduce: Shape("all_reduce", _in_place),
    OpName.reduce: Shape("reduce", _in_place),
    OpName.all_gather: Shape("all_gather", _all_gather),
    OpName.all_gather_v: Shape("all_gather_v", _all_gather_v),
    OpName.all_gather_single: Shape("all_gather", _all_gather_single),
    OpName.all_gather_p_exec: Shape("all_gather", _all_gather_single),
    OpName.reduce_scatter: Shape("reduce_scatter", _reduce_scatter),
    OpName.reduce_scatter_v: Shape("reduce_scatter_v", _reduce_scatter_v),
    OpName.reduce_scatter_single: Shape("reduce_scatter", _reduce_scatter_single),
    OpName.all_to_all_single: Shape("all_to_all", _all_to_all_single),
    OpName.all_to_all_v_single: Shape("all_to_all_v", _all_to_all_v_single),
    OpName.all_to_all: Shape("all_to_all_v", _all_to_all),
    OpName.barrier: Shape("barrier", _nothing),
    OpName.scatter: Shape("scatter", _scatter),
    OpName.gather: Shape("gather", _gather),
    OpName.gather_single: Shape("gather", _gather_single),
}


def check_peer(what: str, peer: int, rank: int, size: int) -> None:
    """Refuses a root, source or destination that is no rank, and a transfer with oneself."""
    if not hasattr(peer, "__index__") or not 0 <= peer < size:
        raise RuntimeError(f"{what} {peer} is out of range: ranks are 0 to {size - 1}")
    if peer == rank and what != "root":
        verb = "send to" if what == "dst" else "receive from"
        raise RuntimeError(f"{what} {peer} is this rank, which can't {verb} itself")


def _tensor(given: object, name: str) -> torch.Tensor:
    if isinstance(given, torch.Tensor):
        return given
    raise RuntimeError(f"{name} is a tensor, not {type(given).__name__}")


def _parts(given: object, name: str, size: int) -> list[torch.Tensor]:
    if not isinstance(given, (list, tuple)):
        raise RuntimeError(f"{name} is a list of tensors, not {type(given).__name__}")
    if len(given) != size:
        raise RuntimeError(f"{name} has {len(given)} tensors, but there are {size} ranks")
    return [_tensor(part, f"{name}[{index}]") for index, part in enumerate(given)]


def _require_equal(parts: list[torch.Tensor], name: str, own: torch.Tensor, own_name: str) -> None:
    elements = own.numel()
    for index, part in enumerate(parts):
        if part.numel() != elements:
            _require_one(part, f"{name}[{index}]", own, own_name)


def _require_one(part: torch.Tensor, name: str, own: torch.Tensor, own_name: str) -> None:
    if part.numel() != own.numel():
        raise RuntimeError(f"{name} has {part.numel()} elements, but {own_name} has {own.numel()}")


def _require_times(whole: torch.Tensor, name: str, own: torch.Tensor, own_name: str, size: int) -> None:
    if whole.numel() != own.numel() * size:
        raise RuntimeError(
            f"{name} has {whole.numel()} elements, but {own_name} has {own.numel()} and there are {size} ranks, "
            f"which makes {own.numel() * size}"
        )


def _elements(given: object, name: str, tensor: torch.Tensor, tensor_name: str, size: int) -> list[int]:
    """How many elements each part has that is given as rows of the first dimension."""
    if not isinstance(given, (list, tuple)) or not all(isinstance(rows, int) for rows in given):
        raise RuntimeError(f"{name} is a list of numbers, not {given!r}")
    if len(given) != size:
        raise RuntimeError(f"{name} has {len(given)} numbers, but there are {size} ranks")
    rows_there = tensor.size(0) if tensor.dim() else 1
    if min(given) < 0:
        raise RuntimeError(f"{name} has a number below 0: {list(given)}")
    if sum(given) > rows_there:
        raise RuntimeError(f"{name} sums to {sum(given)}, but {tensor_name} has {rows_there} rows")
    row = tensor.numel() // rows_there if rows_there else 0
    return [rows * row for rows in given]


def _head(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    if elements == tensor.numel() or not tensor.is_contiguous():
        return tensor
    return tensor.view(-1)[:elements]
