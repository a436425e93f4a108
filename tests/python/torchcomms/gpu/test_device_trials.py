"""Random trials of all operations on devices, and groups that share a device.

``RINGFOLD_GPU_TRIALS`` is the number of trials with each number of ranks (12). A failure names its seed.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from ranks import Ranks
from test_device_collectives import assert_same_bits, device_comm, limit, processor_comm, random_of
from test_device_exchanges import OPERATIONS, Operation
from torchcomms import ReduceOp, TorchComm

TRIALS = int(os.environ.get("RINGFOLD_GPU_TRIALS", "12"))
# A trial takes about 30 ms, and compiling the kernels of a type half a second.
LIMIT = 60.0 + TRIALS
COUNTS = (1, 2, 31, 1000, 16_384, 65_537, 300_001, 1_200_007)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def all_reduce(comm: TorchComm, make: object, count: int) -> list[torch.Tensor]:
    assert callable(make)
    tensor = make(count, 0)
    comm.all_reduce(tensor, ReduceOp.SUM, True).wait()
    return [tensor]


def ring(comm: TorchComm, make: object, count: int) -> list[torch.Tensor]:
    assert callable(make)
    rank, size = comm.get_rank(), comm.get_size()
    found = make(count, 0)
    batch = comm.batch_op_create()
    batch.send(make(count, 1), (rank + 1) % size)
    batch.recv(found, (rank - 1) % size)
    batch.issue(False)
    return [found]


def trials(first: int) -> None:
    limit(LIMIT)
    gpu, cpu = device_comm(), processor_comm()
    rank = gpu.get_rank()
    operations: tuple[Operation, ...] = (*OPERATIONS, all_reduce, ring)
    for seed in range(first, first + TRIALS):
        chosen = random.Random(seed)
        operation, dtype = chosen.choice(operations), chosen.choice(DTYPES)
        count, offset = max(1, chosen.choice(COUNTS) // gpu.get_size()), chosen.choice((0, 0, 1, 3, rank))
        in_graph = chosen.random() < 0.3
        kept: list[torch.Tensor] = []
        contents: list[torch.Tensor] = []

        def here(length: int, number: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return random_of(dtype, length, rank * 1000 + number)

        def there(
            length: int,
            number: int,
            kept: list[torch.Tensor] = kept,
            contents: list[torch.Tensor] = contents,
            dtype: torch.dtype = dtype,
            offset: int = offset,
        ) -> torch.Tensor:
            base = torch.zeros(length + offset, dtype=dtype, device="cuda")[offset:]
            contents.append(random_of(dtype, length, rank * 1000 + number))
            kept.append(base)
            return base.copy_(contents[-1])

        expected = operation(cpu, here, count)
        found = operation(gpu, there, count)
        if in_graph:
            at = iter(kept)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = operation(gpu, lambda length, number, at=at: next(at), count)  # type: ignore[misc]
            for tensor, content in zip(kept, contents, strict=True):
                tensor.copy_(content)
            graph.replay()
        for one, other in zip(found, expected, strict=True):
            what = f"seed {seed}: {operation.__name__}, {dtype}, {count} at {offset}, in a graph: {in_graph}"
            assert_same_bits(gpu, one, other, what)
    gpu.finalize()
    cpu.finalize()


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_random_operations_have_the_bits_of_processors(ranks: Ranks, world: int) -> None:
    ranks.run(world, trials, world * 1_000_000, deadline=LIMIT + 10.0)


def groups_in_any_order() -> None:
    """Three groups on one device. Each rank issues their calls in an order of its own, on streams of their own."""
    limit()
    groups = [device_comm(f"group {number}") for number in range(3)]
    rank, size = groups[0].get_rank(), groups[0].get_size()
    counts = (1000, 30_000, 200_000, 3_000_001)
    for step in range(40):
        count = counts[step % len(counts)]
        order = random.Random(step * 100 + rank).sample(range(3), 3)
        tensors = [torch.full((count,), float(number + rank), device="cuda") for number in range(3)]
        gathered = [torch.zeros(count * size, device="cuda") for _ in range(3)]
        works = {}
        for number in order:
            works[number] = [groups[number].all_reduce(tensors[number], ReduceOp.SUM, True)]
            works[number].append(groups[number].all_gather_single(gathered[number], tensors[number], True))
        for number, pair in works.items():
            for work in pair:
                work.wait()
            expected = float(sum(number + other for other in range(size)))
            for tensor in (tensors[number], gathered[number]):
                assert torch.equal(tensor.cpu(), torch.full((tensor.numel(),), expected)), (step, number)
    for group in groups:
        group.finalize()


@pytest.mark.parametrize("world", [2, 4])
def test_groups_that_share_a_device_do_not_keep_each_other_from_running(ranks: Ranks, world: int) -> None:
    # A stream for each group needs a hardware queue; under MPS there are two otherwise. All processes share about 96.
    ranks.run(world, groups_in_any_order, env={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, deadline=40.0)
