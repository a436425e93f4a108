"""Every kernel once, with few and small messages: what ``scripts/gpu-suite`` runs under compute-sanitizer, which is slow."""

from __future__ import annotations

import os

import torch
from ranks import Ranks
from test_device_collectives import device_comm, limit, say
from torchcomms import ReduceOp, TorchComm

# Sanitizers make kernels, and the compiler's first modules, ten times slower.
TIMEOUT, DEADLINE = 100.0, 240.0
# Beyond packets, which carry few bytes here, of collectives; and of transfers.
SMALL, BULK, MESSAGE = 100, 2003, 20_001


def collectives(comm: TorchComm, count: int) -> None:
    rank, size = comm.get_rank(), comm.get_size()
    one = torch.full((count * size,), rank + 1.0, device="cuda")
    total = size * (size + 1) / 2
    comm.all_reduce(one, ReduceOp.SUM, False)
    assert float(one[-1]) == total
    part = torch.zeros(count, device="cuda")
    comm.reduce_scatter_single(part, one, ReduceOp.MAX, False)
    assert float(part[-1]) == total
    part.fill_(rank)
    comm.all_gather_single(one, part, False)
    assert one[::count].tolist() == [float(other) for other in range(size)]
    other = torch.zeros_like(one)
    comm.all_to_all_single(other, one, False)
    assert float(other[0]) == rank
    comm.broadcast(other, 0, False)
    assert float(other[-1]) == 0.0
    comm.reduce(one, 0, ReduceOp.SUM, False)


def transfers(comm: TorchComm, counts: tuple[int, ...]) -> None:
    peer = 1 - comm.get_rank()
    batch = comm.batch_op_create()
    found = [torch.zeros(count, device="cuda") for count in counts]
    for count, tensor in zip(counts, found):
        batch.send(torch.full((count,), 1.0 + peer, device="cuda"), peer)
        batch.recv(tensor, peer)
    batch.issue(False)
    assert [float(tensor[-1]) for tensor in found] == [1.0 + comm.get_rank()] * len(counts)


def every_kernel() -> None:
    limit(DEADLINE - 10.0)
    comm = device_comm(timeout=TIMEOUT)
    rank = comm.get_rank()
    for _ in range(2):
        # The second time, memory is registered.
        collectives(comm, SMALL)
        collectives(comm, BULK)
        transfers(comm, (SMALL,))
        transfers(comm, (MESSAGE,))
        transfers(comm, (SMALL, MESSAGE, SMALL))
    say("collectives and transfers")
    window = comm.new_window(torch.zeros(BULK, device="cuda"))
    window.put(torch.ones(SMALL, device="cuda"), 1 - rank, 5, False)
    window.signal(1 - rank, False)
    window.wait_signal(1 - rank, False)
    tensor = window.get_tensor()
    assert tensor is not None and float(tensor.sum()) == SMALL
    window.tensor_deregister()
    say("windows")
    os.environ["RINGFOLD_HOST"] = f"host {rank}"
    between = device_comm("hosts", timeout=TIMEOUT)
    one = torch.ones(BULK, device="cuda")
    between.all_reduce(one, ReduceOp.SUM, False)
    assert float(one.sum()) == 2 * BULK
    between.finalize()
    comm.finalize()


def test_every_kernel_runs_between_processes(ranks: Ranks) -> None:
    ranks.run(2, every_kernel, env={"RINGFOLD_CUDA_PACKET_BYTES": "4096"}, deadline=DEADLINE)
