"""Sums of sparse tensors. Needs torch, so it is imported with the first communicator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchcomms._call import Call
from torchcomms._op_name import OpName
from torchcomms._operands import check_peer
from torchcomms._reduce_op import RedOpType
from torchcomms._work import TorchWork


def is_sparse_sum(call: Call) -> bool:
    """Whether a call is an all-reduce or a reduce of a sparse COO tensor."""
    return (
        call.op in (OpName.all_reduce, OpName.reduce)
        and isinstance(call.output, torch.Tensor)
        and call.output.is_sparse
    )


def reduce_sparse(call: Call, rank: int, size: int, issue: Callable[[Call], TorchWork]) -> None:
    """Sums a sparse tensor over so many ranks: gathers the indices and values of all ranks, and adds them, or the root does.

    The ranks' tensors may have different indices. ``issue`` runs the operations that this needs, each to its end.
    """
    tensor = call.output
    assert isinstance(tensor, torch.Tensor)
    if call.reduce is None or call.reduce.type is not RedOpType.SUM:
        raise RuntimeError("unsupported reduction of sparse tensors: must be SUM")
    if call.op is OpName.reduce:
        check_peer("root", call.peer, rank, size)

    def gather(op: OpName, output: torch.Tensor | list[torch.Tensor], input: torch.Tensor) -> None:
        issue(Call(op, False, None, call.timeout, input, output)).wait()

    with torch.no_grad():
        own = tensor.detach().coalesce()
        count = torch.tensor([own._nnz()], device=own.device)
        counts = torch.empty(size, dtype=torch.int64, device=own.device)
        gather(OpName.all_gather_single, counts, count)
        parts = []
        for part in (own.indices().t().contiguous(), own.values().contiguous()):
            every = [part.new_empty(rows, *part.shape[1:]) for rows in counts.tolist()]
            gather(OpName.all_gather_v, every, part)
            parts.append(torch.cat(every))
        if call.op is OpName.reduce and rank != call.peer:
            return
        indices, values = parts
        total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)
        tensor.copy_(total.coalesce())
