"""torch.distributed over ringfold: what scripts do with gloo, and what gloo cannot do."""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ports import free_port
from ranks import Ranks
from torch.distributed import ReduceOp
from training import process_group
from versions import VERSION, checks_all_backends, has_monitored_barriers

CPU = torch.device("cpu")
SIZES = (0, 1, 5, 1031)
REDUCTIONS = {
    torch.float32: (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX),
    torch.float64: (ReduceOp.SUM,),
    torch.float16: (ReduceOp.SUM, ReduceOp.MAX),
    torch.bfloat16: (ReduceOp.SUM,),
    torch.int32: (ReduceOp.SUM, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR, ReduceOp.MIN),
    torch.int64: (ReduceOp.SUM, ReduceOp.BXOR),
    torch.uint8: (ReduceOp.SUM, ReduceOp.MAX),
    torch.int8: (ReduceOp.SUM,),
}


def _data(count: int, dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers, which differ from rank to rank and add up exactly."""
    generator = torch.Generator().manual_seed(1000 * salt + dist.get_rank())
    return torch.randint(1, 4, (count,), generator=generator).to(dtype)


def _like(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]


def _done(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


# --- what gloo does, too ---------------------------------------------------------------------------------------------


def reduce_everything() -> list[torch.Tensor]:
    results = []
    for dtype, ops in REDUCTIONS.items():
        for op in ops:
            for count in SIZES:
                tensor = _data(count, dtype)
                dist.all_reduce(tensor, op)
                later = _data(count, dtype, 1)
                _done(dist.all_reduce(later, op, async_op=True))
                results += [tensor, later]
    for root in range(dist.get_world_size()):
        tensor = _data(33, torch.float32, 2)
        dist.reduce(tensor, root)
        # The others' tensors are not checked.
        results += [tensor] if dist.get_rank() == root else []
    complex_numbers = torch.complex(_data(7, torch.float32), _data(7, torch.float32, 1))
    dist.all_reduce(complex_numbers)
    return [*results, complex_numbers]


def move_everything() -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    results: list[torch.Tensor] = []
    for dtype in (torch.float32, torch.int64, torch.uint8):
        for count in SIZES:
            mine = _data(count, dtype, 3)
            for root in range(world):
                copy = mine.clone()
                dist.broadcast(copy, root)
                results.append(copy)
            everyones, single = _like(mine), torch.zeros(world * count, dtype=dtype)
            dist.all_gather(everyones, mine)
            dist.all_gather_into_tensor(single, mine)
            results += [*everyones, single]
            gathered = _like(mine) if rank == world - 1 else None
            dist.gather(mine, gathered, dst=world - 1)
            results += gathered or []
            part = torch.zeros_like(mine)
            dist.scatter(
                part, [_data(count, dtype, 4 + r) for r in range(world)] if rank == 0 else None, src=0
            )
            results.append(part)
    return results


def exchange_everything() -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    even, odd = torch.zeros(2 * world), torch.zeros(sum(1 + r for r in range(world)))
    dist.all_to_all_single(even, _data(2 * world, torch.float32))
    # Rank r gets r + 1 elements from each, and sends so many to each as that one's rank says.
    odd = torch.zeros(world * (rank + 1))
    sent = _data(sum(r + 1 for r in range(world)), torch.float32, 1)
    dist.all_to_all_single(odd, sent, [rank + 1] * world, [r + 1 for r in range(world)])
    rows = torch.zeros(world, 3)
    dist.all_to_all_single(rows, _data(3 * world, torch.float32, 2).reshape(world, 3))
    scattered = torch.zeros(4)
    dist.reduce_scatter(scattered, [_data(4, torch.float32, 10 + r) for r in range(world)])
    single = torch.zeros(3)
    dist.reduce_scatter_tensor(single, _data(3 * world, torch.float32, 5), ReduceOp.MAX)
    return [even, odd, rows, scattered, single]


def send_and_receive() -> list[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % world, (rank - 1) % world
    results = [torch.zeros(9) for _ in range(6)]
    works = [dist.isend(_data(9, torch.float32), after), dist.irecv(results[0], before)]
    for work in works:
        _done(work)
    # Tags may be received in another order than they were sent in.
    sends = [dist.isend(_data(9, torch.float32, tag), after, tag=tag) for tag in (4, 5, 6)]
    for place, tag in enumerate((6, 4, 5), start=1):
        assert dist.recv(results[place], before, tag=tag) == before
    for work in sends:
        _done(work)
    ops = [
        dist.P2POp(dist.irecv, results[4], before),
        dist.P2POp(dist.isend, _data(9, torch.float32, 7), after),
        dist.P2POp(dist.irecv, results[5], before, tag=1),
        dist.P2POp(dist.isend, _data(9, torch.float32, 8), after, tag=1),
    ]
    for batched in dist.batch_isend_irecv(ops):
        batched.wait()
    # Rank 0 does not know who comes first.
    if rank == 0:
        sums = torch.zeros(3)
        seen = set()
        for _ in range(world - 1):
            one = torch.zeros(3)
            seen.add(dist.recv(one, tag=9))
            sums += one
        assert seen == set(range(1, world))
        results.append(sums)
    else:
        dist.send(_data(3, torch.float32, 9), 0, tag=9)
    return results


def exchange_objects() -> list[Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    everyones: list[Any] = [None] * world
    dist.all_gather_object(everyones, {"rank": rank, "text": "x" * rank})
    received = [f"from {rank}", [rank]] if rank == 0 else [None, None]
    dist.broadcast_object_list(received, src=0)
    gathered: list[Any] | None = [None] * world if rank == 0 else None
    dist.gather_object((rank, "gathered"), gathered, dst=0)
    part: list[Any] = [None]
    dist.scatter_object_list(part, [f"part {r}" for r in range(world)] if rank == 0 else None, src=0)
    return [everyones, received, gathered, part]


def use_groups() -> list[Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    results: list[Any] = []
    outer = dist.new_group([0, world - 1])
    if rank in (0, world - 1):
        tensor = _data(5, torch.float32)
        dist.all_reduce(tensor, group=outer)
        results += [tensor, dist.get_rank(outer), dist.get_world_size(outer)]
        dist.broadcast(tensor, src=world - 1, group=outer)
    else:
        results.append(dist.get_rank(outer))
    pairs, _ = dist.new_subgroups(1)
    alone = torch.ones(2)
    dist.all_reduce(alone, group=pairs)
    results.append(alone)
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        backwards = dist.new_group(list(reversed(range(world))), sort_ranks=False)
        place = torch.tensor([float(dist.get_rank(backwards))])
        dist.broadcast(place, group_src=0, group=backwards)
        results.append(place)
    if rank in (0, world - 1):
        dist.destroy_process_group(outer)
    dist.barrier()
    return results


def coalesce() -> list[torch.Tensor]:
    world = dist.get_world_size()
    many = [_data(3, torch.float32, salt) for salt in range(4)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in many:
            dist.all_reduce(tensor)
    manager.wait()
    outputs = [torch.zeros(2 * world) for _ in range(3)]
    with dist.distributed_c10d._coalescing_manager():
        for salt, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, _data(2, torch.float32, salt))
    parts = [torch.zeros(2) for _ in range(3)]
    with dist.distributed_c10d._coalescing_manager():
        for salt, part in enumerate(parts):
            dist.reduce_scatter_tensor(part, _data(2 * world, torch.float32, salt))
    return [*many, *outputs, *parts]


def call_functions() -> list[torch.Tensor]:
    group, world = dist.group.WORLD, dist.get_world_size()
    assert group is not None
    data = _data(2 * world, torch.float32)
    results = [
        functional.all_reduce(data, "sum", group),
        functional.all_reduce(data, "max", group),
        functional.broadcast(data, 1, group),
        functional.all_gather_tensor(data, 0, group),
        functional.reduce_scatter_tensor(data, "sum", 0, group),
        functional.all_to_all_single(data, None, None, group),
        *functional.all_reduce_coalesced([data, data + 1], "sum", group),
        *functional.all_gather_into_tensor_coalesced([data, data + 1], group),
        *functional.reduce_scatter_tensor_coalesced([data, data + 1], "sum", [0, 0], group),
    ]
    return [result + 0 for result in results]


def compile_functions() -> list[torch.Tensor]:
    group, world = dist.group.WORLD, dist.get_world_size()
    assert group is not None

    def body(data: torch.Tensor) -> list[torch.Tensor]:
        results = [
            functional.all_reduce(data * 2, "sum", group),
            functional.broadcast(data + 1, 1, group),
            functional.all_gather_tensor(data, 0, group),
            functional.reduce_scatter_tensor(data, "sum", 0, group),
            functional.all_to_all_single(data, None, None, group),
        ]
        return [result + 1 for result in results]

    compiled = torch.compile(body, fullgraph=True, backend="aot_eager")
    results: list[torch.Tensor] = compiled(_data(2 * world, torch.float32))
    return results


CHAPTERS: list[Callable[[], list[Any]]] = [
    reduce_everything,
    move_everything,
    exchange_everything,
    send_and_receive,
    exchange_objects,
    use_groups,
    coalesce,
    compile_functions,
    call_functions,
]


def run_chapters(folder: Path) -> None:
    """All chapters by gloo and by us, in the same processes."""
    received = []
    for backend in ("gloo", "ringfold"):
        with process_group(backend, folder):
            assert dist.get_backend() == backend
            received.append([chapter() for chapter in CHAPTERS])
    for chapter, expected, got in zip(CHAPTERS, *received, strict=True):
        assert len(expected) == len(got)
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            is_same = one.equal(other) if isinstance(one, torch.Tensor) else one == other
            assert is_same, f"{chapter.__name__}[{index}]: gloo {one}, ringfold {other}"


@pytest.mark.parametrize("world", [2, 3, 4])
def test_everything_that_gloo_does_is_done_the_same(ranks: Ranks, tmp_path: Path, world: int) -> None:
    ranks.run(world, run_chapters, tmp_path, deadline=180.0)


# --- what gloo does not ----------------------------------------------------------------------------------------------


def go_further(folder: Path) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with process_group("ringfold", folder):
        _reduce_what_gloo_does_not()
        _ask_for_windows()
        _take_tensors_as_they_are()
        _gather_uneven_parts()
        _follow_works()
        _split()
        _abide_by_timeouts_of_waits()
        backend = dist.group.WORLD._get_backend(CPU)  # type: ignore[union-attr]
        assert backend.get_comm().get_rank() == rank and backend.name() == "ringfold"
        assert backend.supports_coalescing and backend.options is not None
        dist.set_timeout(timedelta(seconds=25)) if hasattr(dist, "set_timeout") else None
        threads = [
            threading.Thread(target=_use_a_group_of_its_own, args=(dist.new_group(),)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    gc.collect()
    assert world == 3 and not dist.is_initialized()


def _use_a_group_of_its_own(group: dist.ProcessGroup) -> None:
    for number in range(20):
        tensor = torch.full((100,), float(number))
        dist.all_reduce(tensor, group=group)
        assert tensor[0].item() == number * dist.get_world_size()


def _reduce_what_gloo_does_not() -> None:
    world = dist.get_world_size()
    mean = torch.arange(4.0) * (1 + dist.get_rank())
    dist.all_reduce(mean, ReduceOp.AVG)
    assert mean.equal(torch.arange(4.0) * (world + 1) / 2)
    scaled = torch.ones(3)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(2.5))
    assert scaled.equal(torch.full((3,), 2.5 * world))
    flags = torch.tensor([True, False, dist.get_rank() == 1])
    dist.all_reduce(flags, ReduceOp.BOR)
    assert flags.tolist() == [True, False, True]
    sparse = torch.sparse_coo_tensor([[dist.get_rank(), 2]], [1.0, 2.0], (4,), check_invariants=False)
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0, 1.0, 1.0 + 2.0 * world, 0.0]
    with pytest.raises(RuntimeError, match="BAND|bitwise|float"):
        dist.all_reduce(torch.ones(2), ReduceOp.BAND)


def _ask_for_windows() -> None:
    group = dist.group.WORLD
    assert group is not None
    backend: Any = group._get_backend(CPU)
    assert backend.supports_window is True and backend.supports_shrinking is False
    assert backend._supports_time_estimate is False and backend.mem_allocator is None
    if not hasattr(dist.ProcessGroup, "new_window"):
        return
    assert getattr(group, "supports_window", True) is True
    rank, world = dist.get_rank(), dist.get_world_size()
    for window in (group.new_window(torch.zeros(world)), group.new_window()):
        if window.get_tensor() is None:
            window.tensor_register(torch.zeros(world))
        window.put(torch.tensor([rank + 1.0]), (rank + 1) % world, rank, False)
        window.signal((rank + 1) % world, False)
        window.wait_signal((rank - 1) % world, False)
        assert window.get_tensor()[(rank - 1) % world].item() == (rank - 1) % world + 1
        dist.barrier()
        window.tensor_deregister()


def _take_tensors_as_they_are() -> None:
    world = dist.get_world_size()
    turned = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(turned)
    assert turned.equal(torch.arange(6.0).reshape(2, 3).t() * world) and not turned.is_contiguous()
    every_other = torch.zeros(8)[::2]
    _done(dist.broadcast(every_other if dist.get_rank() else torch.arange(4.0), 0, async_op=True))
    assert dist.get_rank() == 0 or every_other.tolist() == [0.0, 1.0, 2.0, 3.0]
    columns = [torch.zeros(3, 2)[:, 0] for _ in range(world)]
    dist.all_gather(columns, torch.full((3, 2), float(dist.get_rank()))[:, 1])
    assert [column[2].item() for column in columns] == list(range(world))
    parameter = torch.nn.Parameter(torch.ones(2))
    dist.all_reduce(parameter.data)
    dist.all_reduce(parameter)
    assert parameter.tolist() == [world**2] * 2


def _gather_uneven_parts() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [torch.zeros(r + 1) for r in range(world)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    assert [part.tolist() for part in parts] == [[float(r)] * (r + 1) for r in range(world)]
    mine = torch.zeros(rank + 1)
    dist.reduce_scatter(mine, [torch.full((r + 1,), float(r)) for r in range(world)])
    assert mine.tolist() == [float(rank * world)] * (rank + 1)


def _follow_works() -> None:
    """Works report their progress, and futures are completed by themselves."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(2)
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait([f"rank {other} has begun" for other in range(1, world)])
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    store.set(f"rank {rank} has begun", "")
    future = work.get_future().then(lambda done: done.value()[0] * 2)
    until = time.monotonic() + 20.0
    while not work.is_completed():
        assert time.monotonic() < until
        time.sleep(0.001)
    assert work.is_success() and work.exception() is None and work.result()[0] is not None
    assert future.wait().tolist() == [2.0 * world] * 2 and work.wait() and work.wait()
    # Works and tensors are dropped at once.
    for _ in range(20):
        dist.all_reduce(torch.ones(1000), async_op=True)
    gc.collect()
    many = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(50)]
    values = torch.futures.wait_all([one.get_future() for one in many if one is not None])
    assert all(value[0].tolist() == [float(world)] * 5 for value in values)
    inbox = torch.zeros(3)
    if rank == 0:
        received = dist.irecv(inbox)
        store.set("rank 0 receives", "")
        assert received is not None and received.get_future().wait()[0].tolist() == [1.0] * 3
        assert received.source_rank() == 1
    elif rank == 1:
        store.wait(["rank 0 receives"])
        dist.send(torch.ones(3), 0)


def _split() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if VERSION < (2, 15):
        # It splits only groups that are bound to a GPU.
        return
    child = dist.split_group(split_ranks=[[0], list(range(1, world))])
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=child)
    assert tensor.item() == (1 if rank == 0 else world - 1)
    some = dist.split_group(split_ranks=[list(range(1, world))])
    assert (some == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 0)
    work = None if rank == 0 else dist.all_reduce(tensor, group=some, async_op=True)
    assert rank == 0 or work.wait() and work.is_completed()  # type: ignore[union-attr]


def _abide_by_timeouts_of_waits() -> None:
    tensor, rank, world = torch.ones(1), dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait([f"rank {other} has waited" for other in range(1, world)])
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if rank > 0:
        with pytest.raises(RuntimeError, match="has not ended"):
            work.wait(timedelta(seconds=0.05))
        store.set(f"rank {rank} has waited", "")
    assert work.wait() and tensor.item() == dist.get_world_size()


def test_it_does_what_gloo_does_not(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(3, go_further, tmp_path, deadline=120.0)


def is_watched_over_in_detail(folder: Path) -> bool:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    with process_group("ringfold", folder):
        gc.collect()
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        work = dist.broadcast(tensor, 0, async_op=True)
        assert work is not None and work.wait() and tensor.tolist() == [2.0] * 3
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError, match="mismatch|match|Detected"):
            dist.all_reduce(torch.ones(2 + dist.get_rank()))
    return True


@checks_all_backends
def test_torch_may_check_all_calls_in_detail(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, is_watched_over_in_detail, tmp_path) == [True, True]


def watch_over_barriers(folder: Path) -> list[str]:
    texts = []
    with process_group("ringfold", folder):
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        for who, waits_for_all in ((lambda rank: rank != 1, False), (lambda rank: rank == 0, True)):
            if who(dist.get_rank()):
                began = time.monotonic()
                with pytest.raises(RuntimeError) as caught:
                    dist.monitored_barrier(timeout=timedelta(seconds=0.5), wait_all_ranks=waits_for_all)
                assert time.monotonic() - began < 10.0
                texts.append(str(caught.value))
            dist.barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 4.0
    return texts


@has_monitored_barriers
def test_a_monitored_barrier_says_who_is_missing_and_harms_nothing(ranks: Ranks, tmp_path: Path) -> None:
    first, second, third, _ = ranks.run(4, watch_over_barriers, tmp_path)
    assert "monitoredBarrier" in first[0] and "Rank 1 failed" in first[0]
    assert "Ranks 1, 2, 3 failed" in first[1] and "monitoredBarrier" in first[1]
    assert second == [] and "Rank 1 failed" in third[0]


def wait_in_vain(folder: Path) -> str:
    rank = int(os.environ["RANK"])
    with process_group("ringfold", folder):
        dist.barrier()
        # Not before all are there: that may take longer on a busy machine.
        dist.group.WORLD._get_backend(CPU).set_timeout(timedelta(seconds=1))  # type: ignore[union-attr]
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["rank 0 got the error", "rank 2 got the error"])
            return ""
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert work is not None
        future = work.get_future()
        with pytest.raises(RuntimeError, match="rank 1"):
            work.wait()
        with pytest.raises(RuntimeError, match="rank 1"):
            work.wait()
        with pytest.raises(RuntimeError, match="rank 1"):
            future.wait()
        assert work.is_completed() and not work.is_success() and "rank 1" in str(work.exception())
        with pytest.raises(RuntimeError) as caught:
            dist.barrier()
        store.set(f"rank {rank} got the error", "")
    return str(caught.value)


def test_a_timeout_names_the_rank_that_is_missing(ranks: Ranks, tmp_path: Path) -> None:
    first, _, third = ranks.run(3, wait_in_vain, tmp_path)
    assert "rank 1" in first and "rank 1" in third


# --- how it begins and ends ------------------------------------------------------------------------------------------


def begin_again_and_again(folder: Path) -> list[float]:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    sums = []
    port = int(os.environ["MASTER_PORT"])
    tcp = dist.TCPStore("127.0.0.1", port, world, rank == 0, timedelta(seconds=20))
    begin: list[Callable[[], None]] = [
        lambda: dist.init_process_group("ringfold", store=tcp, rank=rank, world_size=world),
        lambda: dist.init_process_group(
            "ringfold", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
        ),
        lambda: dist.init_process_group(
            "cpu:ringfold", store=dist.PrefixStore("again", tcp), rank=rank, world_size=world
        ),
    ]
    for one in begin:
        one()
        tensor = torch.tensor([float(rank + 1)])
        dist.all_reduce(tensor)
        sums.append(tensor.item())
        dist.destroy_process_group()
    # Rank 0 has the store, and stays until the others are done with it.
    tcp.add("done", 1)
    until = time.monotonic() + 20.0
    while rank == 0 and tcp.add("done", 0) < world and time.monotonic() < until:
        time.sleep(0.01)
    return sums


def test_process_groups_begin_by_any_store_repeatedly(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(3, begin_again_and_again, tmp_path) == [[6.0] * 3] * 3


PROGRAM = """
import {first}
import {second}
import torch.distributed as dist
dist.init_process_group("ringfold")
tensor = torch.ones(1)
dist.all_reduce(tensor)
print("sum " + str(int(tensor.item())) + "\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "first, second", [("torch", "ringfold.torch"), ("torchcomms, ringfold.torch", "torch")]
)
def test_torchrun_starts_it_and_the_order_of_imports_does_not_matter(
    tmp_path: Path, first: str, second: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(first=first, second=second))
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    port = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    done = subprocess.run(
        [*run, *port, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2") == 2
