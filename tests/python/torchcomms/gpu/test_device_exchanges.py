"""All other collectives by kernels: the same bits as on processors, in every form, registered or not, and in graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from ranks import Ranks
from test_device_collectives import (
    BULK,
    DEADLINE,
    LARGE,
    assert_same_bits,
    device_comm,
    limit,
    processor_comm,
    random_of,
)
from torchcomms import ReduceOp, TorchComm

Tensors = list[torch.Tensor]
# Makes a tensor of so many elements with this number; the contents depend on the rank.
Make = Callable[[int, int], torch.Tensor]
Operation = Callable[[TorchComm, Make, int], Tensors]

COUNTS = (1, 7, 1003, 40_001, BULK)


def sizes(comm: TorchComm, count: int) -> list[int]:
    """Sizes of parts that differ, some of them none."""
    return [0 if rank == 1 else count // (rank + 1) + rank for rank in range(comm.get_size())]


def broadcast(comm: TorchComm, make: Make, count: int) -> Tensors:
    outputs = [make(count, root) for root in range(comm.get_size())]
    for root, tensor in enumerate(outputs):
        comm.broadcast(tensor, root, False)
    return outputs


def reduce(comm: TorchComm, make: Make, count: int) -> Tensors:
    outputs = [make(count, root) for root in range(comm.get_size())]
    for root, tensor in enumerate(outputs):
        comm.reduce(tensor, root, ReduceOp.SUM, False)
    return outputs


def all_gather_single(comm: TorchComm, make: Make, count: int) -> Tensors:
    output = make(count * comm.get_size(), 0)
    comm.all_gather_single(output, make(count, 1), False)
    in_place = make(count * comm.get_size(), 2)
    part = in_place[comm.get_rank() * count :][:count]
    comm.all_gather_single(in_place, part, False)
    return [output, in_place]


def all_gather(comm: TorchComm, make: Make, count: int) -> Tensors:
    outputs = [make(count, rank) for rank in range(comm.get_size())]
    comm.all_gather(outputs, make(count, 100), False)
    return outputs


def all_gather_v(comm: TorchComm, make: Make, count: int) -> Tensors:
    parts = sizes(comm, count)
    outputs = [make(part, rank) for rank, part in enumerate(parts)]
    comm.all_gather_v(outputs, make(parts[comm.get_rank()], 100), False)
    return outputs


def reduce_scatter_single(comm: TorchComm, make: Make, count: int) -> Tensors:
    output = make(count, 0)
    comm.reduce_scatter_single(output, make(count * comm.get_size(), 1), ReduceOp.SUM, False)
    most = make(count, 2)
    comm.reduce_scatter_single(most, make(count * comm.get_size(), 3), ReduceOp.MAX, False)
    return [output, most]


def reduce_scatter(comm: TorchComm, make: Make, count: int) -> Tensors:
    output = make(count, 0)
    inputs = [make(count, rank + 1) for rank in range(comm.get_size())]
    comm.reduce_scatter(output, inputs, ReduceOp.AVG, False)
    return [output, *inputs]


def reduce_scatter_v(comm: TorchComm, make: Make, count: int) -> Tensors:
    parts = sizes(comm, count)
    output = make(parts[comm.get_rank()], 0)
    comm.reduce_scatter_v(
        output, [make(part, rank + 1) for rank, part in enumerate(parts)], ReduceOp.SUM, False
    )
    return [output]


def all_to_all_single(comm: TorchComm, make: Make, count: int) -> Tensors:
    output = make(count * comm.get_size(), 0)
    comm.all_to_all_single(output, make(count * comm.get_size(), 1), False)
    return [output]


def all_to_all_v_single(comm: TorchComm, make: Make, count: int) -> Tensors:
    world, me = comm.get_size(), comm.get_rank()

    def between(sender: int, receiver: int) -> int:
        return 0 if (sender + receiver) % 3 == 2 else count // (1 + sender) + receiver

    goes = [between(me, rank) for rank in range(world)]
    comes = [between(rank, me) for rank in range(world)]
    output = make(sum(comes), 0)
    comm.all_to_all_v_single(output, make(sum(goes), 1), comes, goes, False)
    return [output]


def all_to_all(comm: TorchComm, make: Make, count: int) -> Tensors:
    outputs = [make(count, rank) for rank in range(comm.get_size())]
    comm.all_to_all(outputs, [make(count, rank + 100) for rank in range(comm.get_size())], False)
    return outputs


def scatter(comm: TorchComm, make: Make, count: int) -> Tensors:
    output, root = make(count, 0), comm.get_size() - 1
    inputs = [make(count, rank + 1) for rank in range(comm.get_size())] if comm.get_rank() == root else []
    comm.scatter(output, inputs, root, False)
    return [output]


def gather(comm: TorchComm, make: Make, count: int) -> Tensors:
    outputs = [make(count, rank) for rank in range(comm.get_size())] if comm.get_rank() == 0 else []
    comm.gather(outputs, make(count, 100), 0, False)
    return outputs


def gather_single(comm: TorchComm, make: Make, count: int) -> Tensors:
    output = make(count * comm.get_size(), 0)
    comm.gather_single(output, make(count, 1), comm.get_size() - 1, False)
    return [output]


OPERATIONS: tuple[Operation, ...] = (
    *(broadcast, reduce, all_gather_single, all_gather, all_gather_v),
    *(reduce_scatter_single, reduce_scatter, reduce_scatter_v),
    *(all_to_all_single, all_to_all_v_single, all_to_all, scatter, gather, gather_single),
)


def maker(device: str, dtype: torch.dtype, rank: int, offset: int = 0) -> Make:
    def make(count: int, number: int) -> torch.Tensor:
        values = random_of(dtype, count, rank * 1000 + number)
        base = torch.zeros(count + offset, dtype=dtype, device=device)
        base[offset:].copy_(values)
        return base[offset:]

    return make


def same_bits(count: int, dtypes: tuple[torch.dtype, ...]) -> None:
    limit()
    gpu, cpu = device_comm(), processor_comm()
    rank = gpu.get_rank()
    for dtype in dtypes:
        for operation in OPERATIONS:
            if not dtype.is_floating_point and operation is reduce_scatter:
                continue
            expected = operation(cpu, maker("cpu", dtype, rank), count)
            for offset in (0, 1):
                found = operation(gpu, maker("cuda", dtype, rank, offset), count)
                for one, other in zip(found, expected, strict=True):
                    what = f"{operation.__name__}, {dtype}, {count} elements at {offset}"
                    assert_same_bits(gpu, one, other, what)
    assert not gpu.get_backend_impl()._queues, "nothing is staged through the host"
    gpu.finalize()
    cpu.finalize()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_operation_has_the_bits_of_processors(ranks: Ranks, world: int, count: int) -> None:
    ranks.run(world, same_bits, count, (torch.float32, torch.bfloat16, torch.int64), deadline=DEADLINE)


def large_and_registered() -> None:
    limit()
    gpu, cpu = device_comm(), processor_comm()
    rank, world = gpu.get_rank(), gpu.get_size()
    expected = {op: op(cpu, maker("cpu", torch.float32, rank), LARGE // world) for op in OPERATIONS}
    pool = torch.zeros(LARGE * 40, device="cuda")
    gpu.get_backend_impl().register_tensor(pool)
    for is_registered in (False, True):
        used = 0

        def make(count: int, number: int, is_registered: bool = is_registered) -> torch.Tensor:
            nonlocal used
            values = random_of(torch.float32, count, rank * 1000 + number)
            if not is_registered:
                return values.to("cuda")
            tensor = pool[used : used + count]
            used += count
            tensor.copy_(values)
            return tensor

        for operation in OPERATIONS:
            used = 0
            found = operation(gpu, make, LARGE // world)
            for one, other in zip(found, expected[operation], strict=True):
                assert_same_bits(gpu, one, other, f"{operation.__name__}, registered: {is_registered}")
    gpu.finalize()
    cpu.finalize()


@pytest.mark.parametrize("world", [2, 4])
def test_large_ones_are_exact_through_staging_and_in_place(ranks: Ranks, world: int) -> None:
    ranks.run(world, large_and_registered, deadline=DEADLINE)


def captured() -> None:
    limit()
    gpu, cpu = device_comm(), processor_comm()
    rank = gpu.get_rank()
    for count in (1003, BULK):
        for operation in OPERATIONS:
            kept: Tensors = []

            def make(count: int, number: int, kept: Tensors = kept) -> torch.Tensor:
                kept.append(torch.zeros(count, device="cuda"))
                return kept[-1]

            # The tensors and kernels are made before the capture.
            operation(gpu, make, count)
            at = iter(kept)

            def again(count: int, number: int, at: Iterator[torch.Tensor] = at) -> torch.Tensor:
                return next(at)

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = operation(gpu, again, count)
                gpu.barrier(False)
            numbers: list[int] = []

            def noted(count: int, number: int, numbers: list[int] = numbers) -> torch.Tensor:
                numbers.append(number)
                return maker("cpu", torch.float32, rank)(count, number)

            expected = operation(cpu, noted, count)
            for _ in range(3):
                for tensor, number in zip(kept, numbers, strict=True):
                    tensor.copy_(maker("cpu", torch.float32, rank)(tensor.numel(), number))
                graph.replay()
                torch.cuda.synchronize()
                for one, other in zip(outputs, expected, strict=True):
                    assert_same_bits(gpu, one, other, f"{operation.__name__} in a graph, {count} elements")
    gpu.finalize()
    cpu.finalize()


@pytest.mark.parametrize("world", [2, 3])
def test_every_operation_can_be_captured_and_replayed(ranks: Ranks, world: int) -> None:
    ranks.run(world, captured, deadline=2 * DEADLINE)
