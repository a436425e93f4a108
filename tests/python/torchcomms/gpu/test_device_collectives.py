"""All-reduces and all-gathers by kernels: the same bits as on processors, on streams and in graphs, and ends of ranks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torchcomms
from ranks import Ranks
from ringfold import _native
from ringfold._error import GroupError
from torchcomms import ReduceOp, TorchComm
from torchcomms._device import Device

# Compiling kernels takes a while the first time, and ranks without MPS share the device by turns.
LONG = 600.0
# Elements: packets, and beyond; none of them divides evenly. The last one needs several rounds of staging.
COUNTS = (1, 7, 1003, 40_001, 1_000_003)
# Beyond what packets carry, and more than one round of staging.
LARGE = 3_000_001

INTEGERS = (
    *(torch.uint8, torch.int8, torch.int16, torch.uint16),
    *(torch.int32, torch.uint32, torch.int64, torch.uint64),
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ARITHMETIC = (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG)
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def device_comm(name: str = "gpu", timeout: float = 60.0, backend: str = "nccl") -> TorchComm:
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


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


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
    assert bits(there) == bits(expected), f"{dtype}, {op}, {count} elements at {offset}"


# --- bits ------------------------------------------------------------------------------------------------------------


def reduces_everything() -> None:
    gpu, cpu = device_comm(), processor_comm()
    for dtype in (*INTEGERS, *FLOATS):
        for op in (*ARITHMETIC, *(BITWISE if dtype in INTEGERS else ())):
            for count in (COUNTS[0], COUNTS[2], COUNTS[3]):
                assert_reduces_alike(gpu, cpu, dtype, op, count)
    for op in (ReduceOp.SUM, ReduceOp.AVG):
        for complex_dtype in (torch.complex64, torch.complex128):
            mine = torch.randn(
                1003, dtype=complex_dtype, generator=torch.Generator().manual_seed(gpu.get_rank())
            )
            expected, there = mine.clone(), mine.cuda()
            cpu.all_reduce(expected, op, False)
            gpu.all_reduce(there, op, False)
            assert bits(there) == bits(expected)
    assert_reduces_alike(gpu, cpu, torch.bool, ReduceOp.BXOR, 1003)
    assert_reduces_alike(gpu, cpu, torch.float32, ReduceOp.PREMUL_SUM(0.3), 1003)
    gpu.finalize()
    cpu.finalize()


def test_every_type_and_operation_gives_the_bits_of_the_processor(ranks: Ranks) -> None:
    ranks.run(4, reduces_everything, deadline=LONG)


def reduces_and_gathers() -> None:
    gpu, cpu = device_comm(), processor_comm()
    rank, size = gpu.get_rank(), gpu.get_size()
    for dtype in (torch.float32, torch.bfloat16):
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            for count in COUNTS:
                assert_reduces_alike(gpu, cpu, dtype, op, count)
                # Every rank's tensor begins elsewhere.
                assert_reduces_alike(gpu, cpu, dtype, op, count, 1 + rank)
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex128):
        for count in COUNTS:
            mine = random_of(dtype, count, rank) if not dtype.is_complex else torch.randn(count, dtype=dtype)
            expected = torch.empty(count * size, dtype=dtype)
            cpu.all_gather_single(expected, mine, False)
            whole = torch.zeros(count * size, dtype=dtype, device="cuda")
            gpu.all_gather_single(whole, mine.cuda(), False)
            assert bits(whole) == bits(expected), f"{dtype}, {count} elements"
            # In place, and off by one.
            base = torch.zeros(count * size + 1, dtype=dtype, device="cuda")[1:]
            base[rank * count : (rank + 1) * count].copy_(mine)
            gpu.all_gather_single(base, base[rank * count : (rank + 1) * count], False)
            assert bits(base) == bits(expected), f"{dtype}, {count} elements, in place"
            parts = [torch.zeros(count, dtype=dtype, device="cuda") for _ in range(size)]
            gpu.all_gather(parts, mine.cuda(), False)
            assert bits(torch.cat(parts)) == bits(expected), f"{dtype}, {count} elements, apart"
    for tensor in (torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.int8, device="cuda")):
        gpu.all_reduce(tensor, ReduceOp.SUM, False)
    gpu.finalize()
    cpu.finalize()


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_all_sizes_and_places_give_the_bits_of_the_processor(ranks: Ranks, world: int) -> None:
    ranks.run(world, reduces_and_gathers, deadline=LONG)


def reduces_registered() -> None:
    gpu, cpu = device_comm(), processor_comm()
    rank, size, device = gpu.get_rank(), gpu.get_size(), device_of(gpu)
    held = torch.zeros(4 * LARGE, device="cuda")
    other = torch.zeros(size * LARGE + 64, device="cuda")
    for step in range(3):
        # Staged at first; then one is registered, then both.
        if step:
            device.register(held if step == 1 else other)
        for offset in (0, 4 * rank, 1 + rank):
            mine = random_of(torch.float32, LARGE, rank)
            expected = mine.clone()
            cpu.all_reduce(expected, ReduceOp.SUM, False)
            there = held[offset : offset + LARGE]
            there.copy_(mine)
            gpu.all_reduce(there, ReduceOp.SUM, False)
            assert bits(there) == bits(expected), f"step {step}, at {offset}"
            gathered = torch.empty(size * LARGE)
            cpu.all_gather_single(gathered, mine, False)
            there.copy_(mine)
            whole = other[offset : offset + size * LARGE]
            gpu.all_gather_single(whole, there, False)
            assert bits(whole) == bits(gathered), f"step {step}, at {offset}"
    address, nbytes = held.data_ptr(), held.nbytes
    assert device._group.is_registered(address, nbytes)
    assert not device._group.is_registered(address, nbytes + other.nbytes + (1 << 30))
    gpu.finalize()
    cpu.finalize()


@pytest.mark.parametrize("world", [2, 4, 8])
def test_registered_memory_gives_the_same_bits(ranks: Ranks, world: int) -> None:
    ranks.run(world, reduces_registered, deadline=LONG)


# --- streams and graphs ----------------------------------------------------------------------------------------------


def changes_streams() -> None:
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


@pytest.mark.parametrize("world", [1, 2, 4])
def test_calls_keep_their_order_on_all_streams(ranks: Ranks, world: int) -> None:
    ranks.run(world, changes_streams, deadline=LONG)


def replays(count: int, is_registered: bool) -> None:
    gpu = device_comm()
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
    for replay in range(1, 101):
        graph.replay()
        if replay % 10 == 0:
            torch.cuda.current_stream().synchronize()
            assert torch.equal(whole.cpu(), torch.full((count * size,), float(replay * factor)))
            # Calls outside of the graph in between.
            gpu.all_reduce(torch.ones(count, device="cuda"), ReduceOp.SUM, False)
    torch.cuda.synchronize()
    gpu.finalize()


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(("count", "is_registered"), [(10, False), (100_003, False), (100_003, True)])
def test_graphs_are_replayed_with_new_data(ranks: Ranks, world: int, count: int, is_registered: bool) -> None:
    ranks.run(world, replays, count, is_registered, deadline=LONG)


def graph_of_the_manual() -> list[float]:
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
    assert ranks.run(world, graph_of_the_manual, deadline=LONG) == [[expected] * 10] * world


# --- ends ------------------------------------------------------------------------------------------------------------


def say(*words: object) -> None:
    print(*words, flush=True)


def raises_within(comm: TorchComm, seconds: float, act: Callable[[], object]) -> str:
    began = time.monotonic()
    while True:
        try:
            act()
            torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error)
        assert time.monotonic() - began < seconds, "nothing was raised"


def reduces_for_ever(count: int) -> None:
    comm = device_comm()
    tensor = torch.ones(count, device="cuda")
    for _ in range(3):
        comm.all_reduce(tensor, ReduceOp.MAX, False)
    torch.cuda.synchronize()
    say("going")
    if comm.get_rank() == 1:
        # It is killed while nothing of it runs on the device: a service that shares the device among processes might not
        # survive anything else.
        time.sleep(LONG)
    text = raises_within(comm, 60.0, lambda: comm.all_reduce(tensor, ReduceOp.MAX, False))
    say(f"raised {time.time():.6f} {text}")
    assert comm.is_aborted()
    with pytest.raises(RuntimeError):
        comm.all_reduce(tensor, ReduceOp.MAX, True).wait()
    comm.finalize()


@pytest.mark.parametrize("count", [100, LARGE])
def test_a_killed_rank_is_named_while_others_spin(ranks: Ranks, count: int) -> None:
    running = ranks.start(3, reduces_for_ever, count)
    for rank in range(3):
        running.wait_for(rank, "going", LONG)
    time.sleep(0.5)
    killed = time.time()
    running.kill(1)
    for rank in (0, 2):
        line = running.wait_for(rank, "raised")
        _, when, *text = line.split(" ", 2)
        assert float(when) - killed < 10.0, line
        assert "1" in " ".join(text), line
    assert [running.outcomes()[rank].error for rank in (0, 2)] == [None, None]


def waits_in_vain(count: int) -> str:
    comm = device_comm()
    tensor = torch.ones(count, device="cuda")
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    comm.set_timeout(timedelta(seconds=3.0))
    if comm.get_rank() == 1:
        # Alive and idle.
        time.sleep(12.0)
        return ""
    began = time.monotonic()
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    assert 1.0 < time.monotonic() - began < 10.0
    with pytest.raises(RuntimeError) as raised:
        comm.all_reduce(tensor, ReduceOp.SUM, False)
    return str(raised.value)


@pytest.mark.parametrize("count", [100, LARGE])
def test_a_rank_that_does_not_come_is_named_after_the_timeout(ranks: Ranks, count: int) -> None:
    texts = ranks.run(2, waits_in_vain, count, deadline=LONG)
    assert "1" in texts[0] and "time" in texts[0], texts


def asks_for_something_else(counts: tuple[int, int]) -> str:
    comm = device_comm()
    tensor = torch.ones(counts[comm.get_rank()], device="cuda")
    return raises_within(comm, 60.0, lambda: comm.all_reduce(tensor, ReduceOp.SUM, False))


@pytest.mark.parametrize("counts", [(100, 120), (LARGE, LARGE + 1)])
def test_ranks_that_ask_for_different_things_are_told(ranks: Ranks, counts: tuple[int, int]) -> None:
    for text in ranks.run(2, asks_for_something_else, counts, deadline=LONG):
        assert "different" in text or "another" in text, text


def gives_up() -> str:
    comm = device_comm()
    tensor = torch.ones(100, device="cuda")
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    if comm.get_rank() == 1:
        time.sleep(1.0)
        comm.abort()
        return "gave up"
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError) as raised:
        comm.all_reduce(tensor, ReduceOp.SUM, False)
    return str(raised.value)


def test_an_abort_ends_kernels_that_spin(ranks: Ranks) -> None:
    texts = ranks.run(2, gives_up, deadline=LONG)
    assert "gave" in texts[0], texts


# --- ranks as threads ------------------------------------------------------------------------------------------------


def threads_of_one_process(world: int) -> None:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    place = _native.MeetingPlace()
    failures: list[BaseException] = []
    numbers = {torch.float32: 10, torch.bfloat16: 9}

    def rank(number: int) -> None:
        try:
            group = _native.Group.connect(
                rank=number,
                world=world,
                name="threads",
                at=place if number == 0 else place.announcement,
                timeout=60.0,
                patience=60.0,
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
                        device.register(tensor.data_ptr(), tensor.nbytes, tensor)
                    address = tensor.data_ptr()
                    device.all_reduce(address, address, count, numbers[dtype], 0, stream.cuda_stream)
                    stream.synchronize()
            group.run("barrier", 0, 0, -1, None, None, [], [], None)
            for (dtype, count), tensor in zip(cases, tensors):
                expected = math.comb(world + 1, 2) * world
                assert torch.equal(tensor.cpu(), torch.full((count,), float(expected), dtype=dtype))
            device.settle(60.0)
            group.run("barrier", 0, 0, -1, None, None, [], [], None)
            device.close()
            with pytest.raises(GroupError):
                device.settle(1.0)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert not failures


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_may_be_threads_of_one_process(ranks: Ranks, world: int) -> None:
    ranks.run(1, threads_of_one_process, world, deadline=LONG)
