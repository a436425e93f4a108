"""Operations that tests compile: each as a function of a communicator, its input and ``async_op``, which returns its work and what it writes.

World: 2 ranks. Inputs have 6 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torchcomms import ReduceOp, TorchComm

Tensor = torch.Tensor
Case = Callable[[TorchComm, Tensor, bool], tuple[Any, list[Tensor]]]
GLOBAL_TIMEOUT = timedelta(minutes=1)
FACTOR = torch.tensor(3.0)


def all_reduce(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    return comm.all_reduce(x, ReduceOp.SUM, is_async, hints={}, timeout=timedelta(seconds=60)), [x]


def all_reduce_part(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    """A view of the input: the rest stays."""
    return comm.all_reduce(x[2:4], ReduceOp.MAX, is_async, timeout=GLOBAL_TIMEOUT), [x]


def premul(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    return comm.all_reduce(x, ReduceOp.PREMUL_SUM(2.0), async_op=is_async, timeout=60), [x]


def premul_by_tensor(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    return comm.all_reduce(x, ReduceOp.PREMUL_SUM(FACTOR), is_async), [x]


def reduce(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    return comm.reduce(x, 1, ReduceOp.SUM, is_async), [x]


def broadcast(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    return comm.broadcast(x, 1, is_async), [x]


def barrier(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    return comm.barrier(is_async), [x]


def all_gather(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    outputs = [torch.empty_like(x) for _ in range(2)]
    return comm.all_gather(outputs, x, is_async), outputs


def all_gather_chunks(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    """The outputs are views of one tensor."""
    whole = x.new_zeros(12)
    return comm.all_gather(list(whole.chunk(2)), x, is_async), [whole]


def all_gather_v(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    outputs = [torch.empty(4), torch.empty(5)]
    own = x[:4] if comm.get_rank() == 0 else x[:5]
    return comm.all_gather_v(outputs, own, is_async), outputs


def all_gather_single(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    output = torch.empty(2, 6)
    return comm.all_gather_single(output, x, is_async), [output]


def reduce_scatter(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    output = torch.empty(3)
    return comm.reduce_scatter(output, list(x.chunk(2)), ReduceOp.SUM, is_async), [output]


def reduce_scatter_v(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    output = torch.empty(2 if comm.get_rank() == 0 else 4)
    return comm.reduce_scatter_v(output, [x[:2], x[2:]], ReduceOp.SUM, is_async), [output]


def reduce_scatter_single(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    output = torch.empty(3)
    return comm.reduce_scatter_single(output, x, ReduceOp.AVG, is_async), [output]


def all_to_all(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    outputs = [torch.empty(3), torch.empty(3)]
    return comm.all_to_all(outputs, [x[:3], x[3:]], is_async), outputs


def all_to_all_single(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    output = torch.empty(6)
    return comm.all_to_all_single(output, x, is_async), [output]


def all_to_all_v_single(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    """The last elements of the output stay."""
    sent = [1, 3] if comm.get_rank() == 0 else [2, 4]
    received = [1, 2] if comm.get_rank() == 0 else [3, 4]
    output = torch.full((8,), -1.0)
    return comm.all_to_all_v_single(output, x, received, sent, is_async), [output]


def scatter(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    output = torch.empty(3)
    parts = [x[:3], x[3:]] if comm.get_rank() == 1 else []
    return comm.scatter(output, parts, 1, is_async), [output]


def gather(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    outputs = [torch.zeros(6), torch.zeros(6)]
    return comm.gather(outputs, x, 0, is_async), outputs


def gather_single(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    output = torch.zeros(12)
    return comm.gather_single(output, x, 0, is_async), [output]


def transfer(comm: TorchComm, x: Tensor, is_async: bool) -> tuple[Any, list[Tensor]]:
    """Rank 0 sends, rank 1 receives."""
    output = torch.zeros(6)
    if comm.get_rank() == 0:
        return comm.send(x, 1, is_async), [output]
    return comm.recv(output, 0, is_async), [output]


ALL: dict[str, Case] = {
    one.__name__: one
    for one in (
        *(all_reduce, all_reduce_part, premul, premul_by_tensor, reduce, broadcast, barrier, all_gather),
        *(all_gather_chunks, all_gather_v, all_gather_single, reduce_scatter, reduce_scatter_v),
        *(reduce_scatter_single, all_to_all, all_to_all_single, all_to_all_v_single, scatter, gather),
        *(gather_single, transfer),
    )
}


def expected(name: str, rank: int) -> tuple[list[list[float]], list[float]]:
    """What the operation writes on a rank, and the input afterwards, if rank r has the input ``values(r)``."""
    mine, (a, b) = values(rank), (values(0), values(1))
    total = a + b
    both = torch.cat([a, b])
    nothing = torch.zeros_like
    part = slice(0, 3) if rank == 0 else slice(3, 6)
    in_place = {
        "all_reduce": total,
        "all_reduce_part": torch.cat([mine[:2], torch.maximum(a, b)[2:4], mine[4:]]),
        "premul": 2 * total,
        "premul_by_tensor": 3 * total,
        "reduce": total if rank == 1 else mine,
        "broadcast": b,
        "barrier": mine,
    }
    if name in in_place:
        return [in_place[name].tolist()], in_place[name].tolist()
    outputs = {
        "all_gather": [a, b],
        "all_gather_chunks": [both],
        "all_gather_v": [a[:4], b[:5]],
        "all_gather_single": [torch.stack([a, b])],
        "reduce_scatter": [total[part]],
        "reduce_scatter_v": [total[:2] if rank == 0 else total[2:]],
        "reduce_scatter_single": [total[part] / 2],
        "all_to_all": [a[part], b[part]],
        "all_to_all_single": [torch.cat([a[part], b[part]])],
        "all_to_all_v_single": [
            torch.tensor([*a[:1], *b[:2], *[-1.0] * 5] if rank == 0 else [*a[1:4], *b[2:6], -1.0])
        ],
        "scatter": [b[part]],
        "gather": [a, b] if rank == 0 else [nothing(a), nothing(b)],
        "gather_single": [both if rank == 0 else nothing(both)],
        "transfer": [a if rank == 1 else nothing(a)],
    }
    return [one.tolist() for one in outputs[name]], mine.tolist()


def values(rank: int) -> Tensor:
    """The input of a rank."""
    return torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [60.0, 50.0, 40.0, 30.0, 20.0, 10.0]][rank])
