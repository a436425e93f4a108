"""All-reduces and all-gathers by kernels: the same bits as on processors, on streams and in graphs, and ends of ranks."""

from __future__ import annotations

import faulthandler
import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torchcomms
from ranks import Ranks
from ringfold import _native
from ringfold._error import GroupError
from torchcomms import ReduceOp, TorchComm
from torchcomms._device import Device

# How long kernels wait for a rank, and how long a test may take: some five times as long as it does. Compiling one kind of
# kernels takes about half a second, and ranks without MPS share the device by turns.
TIMEOUT, DEADLINE = 15.0, 40.0
# Elements: packets, what few ranks send in packets, and beyond; none of them divides evenly. The last one needs several
# rounds of staging.
COUNTS = (1, 7, 1003, 40_001, 160_001, 1_100_003)
# Beyond what packets carry.
BULK = 300_003
# The same, and more than one round of staging.
LARGE = 3_000_001

INTEGERS = (
    *(torch.uint8, torch.int8, torch.int16, torch.uint16),
    *(torch.int32, torch.uint32, torch.int64, torch.uint64),
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ARITHMETIC = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG)
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def limit(seconds: float = DEADLINE - 5.0) -> None:
    """A rank that takes longer says where it is, and ends."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def device_comm(name: str = "gpu", timeout: float = TIMEOUT, backend: str = "nccl") -> TorchComm:
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    comm = torchcomms.new_comm(
        backend, device, name, timeout=timeout, abort_process_on_timeout_or_error=False
    )
    device_of(comm)
    return comm


def device_of(comm: TorchComm) -> Device:
    device = comm.get_backend_impl()._device
    assert isinstance(device, Device), "the collectives do not run on the device; the log says why"
    return device


def processor_comm(name: str = "cpu") -> TorchComm:
    return torchcomms.new_comm("ringfold", torch.device("cpu"), name)


def random_of(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    """Any bits at all: numbers that overflow, subnormal ones, infinities, and NaN with payloads."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator, dtype=torch.uint8).view(torch.bool)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8).view(dtype)
    if dtype.is_floating_point and count > 3:
        # Not only NaN and huge numbers.
        half = count // 2
        raw[:half] = torch.randn(half, generator=generator, dtype=torch.float64).to(dtype)
        raw[half] = -0.0 if rank % 2 else 0.0
    return raw


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)


def assert_same_bits(comm: TorchComm, found: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    """Says where bytes are others, if some are, and what has failed, if something has."""
    one, other = bits(found), bits(expected)
    if not torch.equal(one, other):
        places = (one != other).nonzero().flatten()
        shown = ", ".join(f"{place} ({one[place]}, not {other[place]})" for place in places[:8].tolist())
        raise AssertionError(
            f"{what}: {places.numel()} of {one.numel()} bytes differ, up to {places[-1]}: {shown}; "
            f"failure: {device_of(comm)._group.failure()}"
        )


def assert_reduces_alike(
    gpu: TorchComm, cpu: TorchComm, dtype: torch.dtype, op: ReduceOp, count: int, offset: int = 0
) -> None:
    mine = random_of(dtype, count, gpu.get_rank())
    expected = mine.clone()
    cpu.all_reduce(expected, op, False)
    base = torch.zeros(count + offset, dtype=torch.uint8 if dtype is torch.bool else dtype, device="cuda")
    there = (base.view(torch.bool) if dtype is torch.bool else base)[offset:]
    there.copy_(mine)
    gpu.all_reduce(there, op, False)
    assert_same_bits(gpu, there, expected, f"{dtype}, {op}, {count} elements at {offset}")


# --- graphs ----------------------------------------------------------------------------------------------------------


def graph_of_the_manual() -> list[float]:
    limit()
    device = torch.device("cuda:0")
    comm = torchcomms.new_comm("ncclx", device)
    tensor = torch.ones(10, device=device) * comm.get_rank()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, async_op=True)
    for _ in range(10):
        graph.replay()
        torch.cuda.current_stream().synchronize()
    comm.finalize()
    return list(tensor.tolist())


@pytest.mark.parametrize("world", [1, 2])
def test_the_first_operation_of_all_may_be_captured(ranks: Ranks, world: int) -> None:
    # All ranks have the sum after the first replay, and each replay multiplies it by the number of ranks.
    expected = 0.0 if world == 1 else float(2**9)
    assert ranks.run(world, graph_of_the_manual, deadline=DEADLINE) == [[expected] * 10] * world


def replays() -> None:
    limit()
    gpu = device_comm()
    for count, is_registered in ((10, False), (100_003, False), (BULK, False), (BULK, True)):
        replay(gpu, count, is_registered)
        say("replayed", count, is_registered)
    for count in (10, BULK):
        replay_branches(gpu, count)
        say("replayed branches", count)
    gpu.finalize()


def replay(gpu: TorchComm, count: int, is_registered: bool) -> None:
    rank, size = gpu.get_rank(), gpu.get_size()
    tensor = torch.zeros(count, device="cuda")
    whole = torch.zeros(count * size, device="cuda")
    if is_registered:
        device_of(gpu).register(tensor)
        device_of(gpu).register(whole)
    step = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.add_(1.0)
        tensor.copy_(step.expand(count)).mul_(rank + 1.0)
        gpu.all_reduce(tensor, ReduceOp.SUM, False)
        gpu.all_gather_single(whole, tensor, True)
    factor = sum(range(1, size + 1))
    for number in range(1, 51):
        graph.replay()
        if number % 10 == 0:
            torch.cuda.current_stream().synchronize()
            assert torch.equal(whole.cpu(), torch.full((count * size,), float(number * factor)))
            # Calls outside of the graph in between.
            gpu.all_reduce(torch.ones(count, device="cuda"), ReduceOp.SUM, False)
    torch.cuda.synchronize()


def replay_branches(gpu: TorchComm, count: int) -> None:
    """Branches of a graph, which nothing keeps apart but the order of calls."""
    size = gpu.get_size()
    one, other = torch.zeros(count, device="cuda"), torch.zeros(count, device="cuda")
    step, side = torch.zeros(1, device="cuda"), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.add_(1.0)
        one.copy_(step.expand(count))
        other.copy_(one).mul_(2.0)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            gpu.all_reduce(one, ReduceOp.SUM, False)
        gpu.all_reduce(other, ReduceOp.SUM, False)
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(one.cpu(), torch.full((count,), 20.0 * size))
    assert torch.equal(other.cpu(), torch.full((count,), 40.0 * size))


@pytest.mark.parametrize("world", [2, 4])
def test_graphs_are_replayed_with_new_data(ranks: Ranks, world: int) -> None:
    ranks.run(world, replays, deadline=DEADLINE)


# --- bits ------------------------------------------------------------------------------------------------------------


def reduces_and_gathers() -> None:
    limit()
    gpu, cpu = device_comm(), processor_comm()
    rank = gpu.get_rank()
    for dtype, op in ((torch.float32, ReduceOp.SUM), (torch.bfloat16, ReduceOp.AVG)):
        for count in COUNTS:
            assert_reduces_alike(gpu, cpu, dtype, op, count)
            # Every rank's tensor begins elsewhere.
            assert_reduces_alike(gpu, cpu, dtype, op, count, 1 + rank)
        say("reduced", dtype)
    for dtype in (torch.uint8, torch.float32, torch.complex128):
        for count in COUNTS:
            assert_gathers_alike(gpu, cpu, dtype, count)
        say("gathered", dtype)
    for tensor in (torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.int8, device="cuda")):
        gpu.all_reduce(tensor, ReduceOp.SUM, False)
    reduce_registered(gpu, cpu)
    say("registered")
    gpu.finalize()
    cpu.finalize()


def assert_gathers_alike(gpu: TorchComm, cpu: TorchComm, dtype: torch.dtype, count: int) -> None:
    rank, size = gpu.get_rank(), gpu.get_size()
    mine = random_of(dtype, count, rank) if not dtype.is_complex else torch.randn(count, dtype=dtype)
    expected = torch.empty(count * size, dtype=dtype)
    cpu.all_gather_single(expected, mine, False)
    whole = torch.zeros(count * size, dtype=dtype, device="cuda")
    gpu.all_gather_single(whole, mine.cuda(), False)
    assert_same_bits(gpu, whole, expected, f"{dtype}, {count} elements")
    # In place, and off by one.
    base = torch.zeros(count * size + 1, dtype=dtype, device="cuda")[1:]
    base[rank * count : (rank + 1) * count].copy_(mine)
    gpu.all_gather_single(base, base[rank * count : (rank + 1) * count], False)
    assert_same_bits(gpu, base, expected, f"{dtype}, {count} elements, in place")
    parts = [torch.zeros(count, dtype=dtype, device="cuda") for _ in range(size)]
    gpu.all_gather(parts, mine.cuda(), False)
    assert_same_bits(gpu, torch.cat(parts), expected, f"{dtype}, {count} elements, apart")


def reduce_registered(gpu: TorchComm, cpu: TorchComm) -> None:
    rank, size, device = gpu.get_rank(), gpu.get_size(), device_of(gpu)
    held = torch.zeros(2 * LARGE, device="cuda")
    other = torch.zeros(size * LARGE + 64, device="cuda")
    mine = random_of(torch.float32, LARGE, rank)
    expected, gathered = mine.clone(), torch.empty(size * LARGE)
    cpu.all_reduce(expected, ReduceOp.SUM, False)
    cpu.all_gather_single(gathered, mine, False)
    # Only one of them at first: then an all-gather may be staged.
    for step, tensor in enumerate((held, other)):
        device.register(tensor)
        for offset in (0, 4 * rank, 1 + rank):
            there = held[offset : offset + LARGE]
            there.copy_(mine)
            gpu.all_reduce(there, ReduceOp.SUM, False)
            assert_same_bits(gpu, there, expected, f"step {step}, at {offset}")
            there.copy_(mine)
            whole = other[offset : offset + size * LARGE]
            gpu.all_gather_single(whole, there, False)
            assert_same_bits(gpu, whole, gathered, f"step {step}, at {offset}")
    address, nbytes = held.data_ptr(), held.nbytes
    assert device._group.is_registered(address, nbytes)
    assert not device._group.is_registered(address, nbytes + other.nbytes + (1 << 30))


@pytest.mark.parametrize("world", [2, 4, 8, 3])
def test_all_sizes_and_places_give_the_bits_of_the_processor(ranks: Ranks, world: int) -> None:
    ranks.run(world, reduces_and_gathers, deadline=DEADLINE)


def reduces_without_packets() -> None:
    limit()
    gpu, cpu = device_comm(), processor_comm()
    for count in (1, 1003, 40_001):
        assert_reduces_alike(gpu, cpu, torch.float32, ReduceOp.SUM, count)
    gpu.finalize()
    cpu.finalize()


def test_a_tuning_without_packets_gives_the_same_bits(ranks: Ranks, tmp_path: Path) -> None:
    tuning = tmp_path / "tuning.json"
    tuning.write_text('{"cuda_packet_bytes": {"2": 0}}')
    ranks.run(2, reduces_without_packets, env={"RINGFOLD_CUDA_TUNING": str(tuning)}, deadline=DEADLINE)


def changes_streams() -> None:
    limit()
    gpu = device_comm()
    size = gpu.get_size()
    streams = [torch.cuda.Stream() for _ in range(3)]  # type: ignore[no-untyped-call]
    for count in (5, 50_000):
        tensors = [torch.full((count,), float(step), device="cuda") for step in range(30)]
        torch.cuda.synchronize()
        for step, tensor in enumerate(tensors):
            with torch.cuda.stream(streams[step % 3]):
                gpu.all_reduce(tensor, ReduceOp.SUM, False)
        torch.cuda.synchronize()
        for step, tensor in enumerate(tensors):
            assert torch.equal(tensor.cpu(), torch.full((count,), float(step * size)))
        # Not waited for by the host: the current stream waits.
        works = [gpu.all_reduce(tensor, ReduceOp.MAX, True) for tensor in tensors]
        for work in works:
            work.wait()
        total = torch.stack(tensors).sum(0)
        assert torch.equal(total.cpu(), torch.full((count,), float(sum(range(30)) * size)))
        works[-1].wait_blocking()
        assert all(work.is_completed() for work in works)
    say("streams")
    # Between operations that go through the host's memory.
    tensor = torch.full((9,), float(gpu.get_rank()), device="cuda")
    for _ in range(5):
        gpu.broadcast(tensor, 0, False)
        work = gpu.all_reduce(tensor.add_(1.0), ReduceOp.SUM, True)
        gpu.barrier(False)
        work.wait()
    expected = 0.0
    for _ in range(5):
        expected = (expected + 1.0) * size
    assert tensor.tolist() == [expected] * 9
    gpu.finalize()


def test_calls_keep_their_order_on_all_streams(ranks: Ranks) -> None:
    ranks.run(4, changes_streams, deadline=DEADLINE)


def reduces_everything() -> None:
    limit(80.0)
    gpu, cpu = device_comm(), processor_comm()
    for number, dtype in enumerate((*INTEGERS, *FLOATS)):
        # Floats are where bits may differ; integers share the operations among them.
        ops = ARITHMETIC if dtype in FLOATS else (ARITHMETIC[number % 5], BITWISE[number % 3])
        for op in ops:
            for count in (COUNTS[2], COUNTS[-1]):
                assert_reduces_alike(gpu, cpu, dtype, op, count)
        say("reduced", dtype)
    mine = torch.randn(1003, dtype=torch.complex64, generator=torch.Generator().manual_seed(gpu.get_rank()))
    expected, there = mine.clone(), mine.cuda()
    cpu.all_reduce(expected, ReduceOp.AVG, False)
    gpu.all_reduce(there, ReduceOp.AVG, False)
    assert_same_bits(gpu, there, expected)
    assert_reduces_alike(gpu, cpu, torch.bool, ReduceOp.BXOR, 1003)
    assert_reduces_alike(gpu, cpu, torch.float32, ReduceOp.PREMUL_SUM(0.3), 1003)
    gpu.finalize()
    cpu.finalize()


def test_every_type_and_operation_gives_the_bits_of_the_processor(ranks: Ranks) -> None:
    ranks.run(2, reduces_everything, deadline=90.0)


# --- ranks as threads ------------------------------------------------------------------------------------------------


def threads_of_one_process(world: int) -> None:
    limit()
    torch.cuda.init()  # type: ignore[no-untyped-call]
    place = _native.BootstrapListener()
    failures: list[BaseException] = []
    numbers = {torch.float32: 10, torch.bfloat16: 9}

    def rank(number: int) -> None:
        try:
            group = _native.Group.connect(
                rank=number,
                world=world,
                name="threads",
                at=place if number == 0 else place.announcement,
                timeout=TIMEOUT,
                connect_timeout=TIMEOUT,
            )
            device = _native.DeviceGroup.open(group, 0)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            cases = ((torch.float32, 100), (torch.bfloat16, 7), (torch.float32, LARGE))
            # Nothing may be allocated or loaded while another thread's kernel waits for this one's.
            tensors = [torch.full((n,), number + 1.0, dtype=dtype, device="cuda") for dtype, n in cases]
            torch.cuda.synchronize()
            group.run("barrier", 0, 0, -1, None, None, [], [], None)
            for (dtype, count), tensor in zip(cases, tensors):
                for is_registered in (False, True):
                    if is_registered and count == LARGE:
                        device.register(tensor.data_ptr(), tensor.nbytes)
                    address = tensor.data_ptr()
                    device.all_reduce(
                        address, address, count, numbers[dtype], 0, None, stream.cuda_stream, None
                    )
                    stream.synchronize()
            group.run("barrier", 0, 0, -1, None, None, [], [], None)
            for (dtype, count), tensor in zip(cases, tensors):
                expected = math.comb(world + 1, 2) * world
                assert torch.equal(tensor.cpu(), torch.full((count,), float(expected), dtype=dtype))
            device.synchronize(TIMEOUT)
            group.run("barrier", 0, 0, -1, None, None, [], [], None)
            device.close()
            with pytest.raises(GroupError):
                device.synchronize(1.0)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert not failures


def test_ranks_may_be_threads_of_one_process(ranks: Ranks) -> None:
    ranks.run(1, threads_of_one_process, 4, deadline=DEADLINE)


# --- ends ------------------------------------------------------------------------------------------------------------


def ends_before_the_others(is_finalized: bool) -> float:
    limit()
    comm = device_comm()
    tensor = torch.full((LARGE,), comm.get_rank() + 1.0, device="cuda")
    torch.cuda.synchronize()
    comm.barrier(False)
    if comm.get_rank() == 1:
        time.sleep(1.0)
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    result = 3.0 if comm.get_rank() == 0 else float(tensor[0])
    if is_finalized:
        comm.finalize()
    return result


@pytest.mark.parametrize("is_finalized", [True, False])
def test_a_program_that_ends_leaves_its_kernels_a_moment(ranks: Ranks, is_finalized: bool) -> None:
    assert ranks.run(2, ends_before_the_others, is_finalized, deadline=DEADLINE) == [3.0, 3.0]


def say(*words: object) -> None:
    print(*words, flush=True)


def raised_within(seconds: float, act: Callable[[], object]) -> str:
    began = time.monotonic()
    while True:
        try:
            act()
            torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error)
        assert time.monotonic() - began < seconds, "nothing was raised"


def ends_badly() -> dict[str, str]:
    """What is raised, by what has happened. Each has a communicator of its own."""
    limit()
    said = {}
    for count in (100, LARGE):
        said[f"late {count}"] = wait_in_vain(f"late-{count}", count)
        say("late", count)
        said[f"other {count}"] = ask_for_something_else(f"other-{count}", count)
        say("other", count)
        said[f"abort {count}"] = give_up(f"abort-{count}", count)
        say("abort", count)
    return said


def wait_in_vain(name: str, count: int) -> str:
    comm = device_comm(name)
    tensor = torch.ones(count, device="cuda")
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    comm.set_timeout(timedelta(seconds=1.5))
    if comm.get_rank() == 1:
        # Alive and idle.
        time.sleep(3.0)
        return ""
    began = time.monotonic()
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    assert 0.5 < time.monotonic() - began < 10.0
    with pytest.raises(RuntimeError) as raised:
        comm.all_reduce(tensor, ReduceOp.SUM, False)
    return str(raised.value)


def ask_for_something_else(name: str, count: int) -> str:
    comm = device_comm(name)
    tensor = torch.ones(count + comm.get_rank(), device="cuda")
    return raised_within(10.0, lambda: comm.all_reduce(tensor, ReduceOp.SUM, False))


def give_up(name: str, count: int) -> str:
    comm = device_comm(name)
    tensor = torch.ones(count, device="cuda")
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    if comm.get_rank() == 1:
        time.sleep(0.5)
        comm.abort()
        return ""
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError) as raised:
        comm.all_reduce(tensor, ReduceOp.SUM, False)
    return str(raised.value)


def test_kernels_time_out_and_all_waiters_get_the_reason(ranks: Ranks) -> None:
    first, second = ranks.run(2, ends_badly, deadline=DEADLINE)
    for count in (100, LARGE):
        assert "1" in first[f"late {count}"] and "time" in first[f"late {count}"], first
        assert "aborted" in first[f"abort {count}"], first
        for text in (first[f"other {count}"], second[f"other {count}"]):
            assert "different" in text or "another" in text, text


def reduces_for_ever(count: int) -> None:
    limit()
    comm = device_comm()
    tensor = torch.ones(count, device="cuda")
    for _ in range(3):
        comm.all_reduce(tensor, ReduceOp.MAX, False)
    torch.cuda.synchronize()
    say("going")
    if comm.get_rank() == 1:
        # It is killed while nothing of it runs on the device: a service that shares the device among processes might not
        # survive anything else.
        time.sleep(DEADLINE)
    text = raised_within(12.0, lambda: comm.all_reduce(tensor, ReduceOp.MAX, False))
    say(f"raised {time.time():.6f} {text}")
    assert comm.is_aborted()
    with pytest.raises(RuntimeError):
        comm.all_reduce(tensor, ReduceOp.MAX, True).wait()
    comm.finalize()


@pytest.mark.parametrize("count", [100, LARGE])
def test_a_killed_rank_is_named_while_others_spin(ranks: Ranks, count: int) -> None:
    running = ranks.start(3, reduces_for_ever, count)
    for rank in range(3):
        running.wait_for(rank, "going", DEADLINE)
    time.sleep(0.5)
    killed = time.time()
    running.kill(1)
    for rank in (0, 2):
        line = running.wait_for(rank, "raised", DEADLINE)
        _, when, *text = line.split(" ", 2)
        assert float(when) - killed < 10.0, line
        assert "1" in " ".join(text), line
    assert [running.outcomes()[rank].error for rank in (0, 2)] == [None, None]
