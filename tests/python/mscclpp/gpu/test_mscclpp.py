"""The package on a GPU: buffers, kernels, and channels between processes of one GPU.

Starting ranks takes longer than what they do, so one set of them does many things, each in a group of its own. The first that is
wrong ends them, and the output says how far they were.
"""

from __future__ import annotations

import ctypes
import gc
import time
from pathlib import Path
from typing import Any

import mscclpp
import pytest
from mscclpp import KernelBuilder, MemoryDevice2DeviceSemaphore, ProxyService, Transport, pack
from world import World, join, others, rank, size

pytestmark = pytest.mark.usefixtures("needs_gpu")
cupy = pytest.importorskip("cupy", reason="cupy is not installed")

KERNELS = Path(__file__).parent / "kernels"
SECONDS = 30.0
# For a set of ranks that does many things.
SECONDS_ALL = 60.0


def kernel(name: str, **macros: object) -> mscclpp.Kernel:
    return KernelBuilder("package.cu", name, KERNELS, macros).get_compiled_kernel()


def synchronize() -> None:
    cupy.cuda.runtime.deviceSynchronize()


def handles(channels: dict[int, Any]) -> Any:
    """Channels by rank, as kernels see them."""
    raw = {other: channel.device_handle().raw for other, channel in channels.items()}
    nbytes = len(next(iter(raw.values())))
    whole = b"".join(raw.get(each, bytes(nbytes)) for each in range(size()))
    array = cupy.asarray(memoryview(whole), dtype=cupy.uint8)
    synchronize()
    return array


# --- memory --------------------------------------------------------------------------------------------------------


def test_gpu_buffers_are_zeroed_arrays_of_cupy() -> None:
    for shape, dtype in ((1024, cupy.int32), ((3, 5), cupy.float16), ((2, 3, 4), None)):
        buffer = mscclpp.GpuBuffer(shape) if dtype is None else mscclpp.GpuBuffer(shape, dtype=dtype)
        lengths = (shape,) if isinstance(shape, int) else shape
        assert isinstance(buffer, cupy.ndarray) and buffer.shape == lengths
        assert buffer.dtype == (dtype or cupy.float64) and not bool(buffer.any())
        assert buffer.data.ptr == buffer.data.mem.ptr and buffer.data.mem.size >= buffer.nbytes
        buffer += 1
        assert int(buffer.sum()) == buffer.size
        view = buffer[1:]
        del buffer
        view += 1
        assert int(view.max()) == 2
        assert float((view * 2).max()) == 4
    for bad in (0, -1, (4, 0), (-2, 3)):
        with pytest.raises(ValueError, match="not above 0"):
            mscclpp.GpuBuffer(bad)


def test_many_gpu_buffers_are_freed() -> None:
    free, _ = cupy.cuda.runtime.memGetInfo()
    for _ in range(50):
        mscclpp.GpuBuffer(1 << 30, dtype=cupy.uint8)
    synchronize()
    assert cupy.cuda.runtime.memGetInfo()[0] > free - (8 << 30)


def test_raw_buffers_are_taken_by_torch_and_cupy_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    raw = mscclpp.RawGpuBuffer(4096)
    assert raw.nbytes() == 4096 and raw.data() and raw.device_id() == 0
    tensor = torch.from_dlpack(raw).view(torch.float32)
    assert tensor.data_ptr() == raw.data() and tensor.numel() == 1024 and not tensor.any()
    tensor.fill_(3)
    torch.cuda.synchronize()
    array = cupy.from_dlpack(raw).view(cupy.float32)
    assert float(array.sum()) == 3 * 1024
    del raw
    tensor.add_(1)
    torch.cuda.synchronize()
    assert float(array.sum()) == 4 * 1024


# --- kernels -------------------------------------------------------------------------------------------------------


def test_kernels_are_launched_on_streams_of_cupy_and_torch() -> None:
    torch = pytest.importorskip("torch")
    scale = kernel("scale")
    array = mscclpp.GpuBuffer(1000, dtype=cupy.int32)
    scale.launch_kernel(pack(array, array.size, 5), 4, 128, 0, None)
    synchronize()
    assert int(array.min()) == int(array.max()) == 5
    stream = cupy.cuda.Stream(non_blocking=True)
    scale.launch_kernel(pack(array, array.size, 6), (4, 1), (64, 1, 1), 0, stream)
    stream.synchronize()
    assert int(array.min()) == 6
    tensor = torch.zeros(1000, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    scale.launch_kernel(pack(tensor, tensor.numel(), 7), 4, 128, 0, other)
    scale.launch_kernel(pack(tensor, tensor.numel(), 8), 4, 128, 0, other.cuda_stream)
    other.synchronize()
    assert bool((tensor == 8).all())
    tripled = kernel("scale", FACTOR=3)
    tripled.launch_kernel(pack(array, array.size, 7), 4, 128)
    synchronize()
    assert int(array.max()) == 21
    with pytest.raises(mscclpp.BaseError):
        scale.launch_kernel(b"\0" * 4, 4, 128)
    with pytest.raises(mscclpp.BaseError):
        kernel("no_such_kernel")


def test_more_shared_memory_than_usual_can_be_asked_for() -> None:
    array = mscclpp.GpuBuffer(40_000, dtype=cupy.int32)
    kernel("through_shared").launch_kernel(pack(array, array.size), 1, 256, 4 * array.size)
    synchronize()
    assert int(array[0]) == 39_999 * 3 and int(array[-1]) == 0


def test_launches_are_captured_in_graphs() -> None:
    torch = pytest.importorskip("torch")
    scale = kernel("scale")
    tensor = torch.zeros(1000, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scale.launch_kernel(pack(tensor, 1000, 9), 4, 128, 0, torch.cuda.current_stream())
    assert not bool(tensor.any())
    graph.replay()
    torch.cuda.synchronize()
    assert bool((tensor == 9).all())


def alone() -> mscclpp.Communicator:
    bootstrap = mscclpp.TcpBootstrap.create(0, 1)
    bootstrap.initialize(bootstrap.create_unique_id())
    return mscclpp.Communicator(bootstrap)


def test_nothing_is_launched_while_a_communicator_is_over() -> None:
    scale, array = kernel("scale"), mscclpp.GpuBuffer(16, dtype=cupy.int32)
    communicator = alone()
    communicator.abort("enough of it")
    with pytest.raises(mscclpp.Error, match="enough of it"):
        scale.launch_kernel(pack(array, 16, 1), 1, 32)
    del communicator
    gc.collect()
    scale.launch_kernel(pack(array, 16, 1), 1, 32)
    synchronize()
    assert int(array.sum()) == 16


def test_kernels_push_triggers_and_the_host_pops_them() -> None:
    fifo = mscclpp.Fifo(8)
    push = kernel("push_some")
    stream = cupy.cuda.Stream(non_blocking=True)
    push.launch_kernel(pack(fifo.device_handle().raw, 20), 1, 1, 0, stream)
    got, until = [], time.monotonic() + SECONDS
    while len(got) < 20 and time.monotonic() < until:
        trigger = fifo.poll()
        if trigger:
            got.append((trigger.fst, trigger.snd))
            fifo.pop()
    stream.synchronize()
    assert got == [(at, at * 10) for at in range(1, 21)] and not fifo.poll()


# --- channels between processes ------------------------------------------------------------------------------------


def parts(n: int) -> Any:
    """An array of one part per rank, with this rank's own filled in."""
    memory = mscclpp.GpuBuffer(n * size(), dtype=cupy.int32)
    memory[rank() * n : (rank() + 1) * n] = rank() + 1
    synchronize()
    return memory


def all_parts(memory: Any, n: int) -> bool:
    synchronize()
    expected = cupy.repeat(cupy.arange(1, size() + 1, dtype=cupy.int32), n)
    return bool((memory == expected).all())


def memory_channels(name: str, old: bool) -> bool:
    group = join(name)
    connections = group.make_connection(others(), Transport.CudaIpc)
    n = 64 << 10
    memory = parts(n)
    make = group.make_sm_channels if old else group.make_memory_channels
    channels = make(memory, connections)
    assert len(channels[others()[0]].device_handle().raw) == 64
    run = kernel("memory_get_all" if old else "memory_put_all")
    known = handles(channels)
    group.barrier()
    blocks = 1 if old else 4
    run.launch_kernel(pack(known, rank(), size(), 4 * n), blocks, 256)
    right = all_parts(memory, n)
    group.communicator.check()
    group.barrier()
    return right


def port_channels(name: str, old: bool, transport: str) -> bool:
    group = join(name)
    connections = group.make_connection(others(), Transport[transport])
    n = 16 << 10
    memory = parts(n)
    service = ProxyService()
    make = group.make_proxy_channels if old else group.make_port_channels
    channels = make(service, memory, connections)
    run, known = kernel("port_put_all"), handles(channels)
    service.start_proxy()
    group.barrier()
    run.launch_kernel(pack(known, rank(), size(), 4 * n), 1, 32)
    right = all_parts(memory, n)
    group.communicator.check()
    group.barrier()
    service.stop_proxy()
    return right


def packets(name: str, registered: bool, old: bool) -> bool:
    group = join(name)
    connections = group.make_connection(others(), Transport.CudaIpc)
    n = 1024
    data = mscclpp.GpuBuffer(n, dtype=cupy.int32)
    scratch = mscclpp.GpuBuffer(2 * n * size(), dtype=cupy.int32)
    given = group.register_local_memory(scratch, connections) if registered else scratch
    make = group.make_sm_channels_with_scratch if old else group.make_memory_channels_with_scratch
    channels = make(data, given, connections)
    run, known = kernel("packets_around"), handles(channels)
    right = True
    for flag in range(1, 4):
        data[:] = 100 * flag + rank()
        synchronize()
        group.barrier()
        run.launch_kernel(pack(known, rank(), size(), 4 * n, flag), 1, 256)
        synchronize()
        right = right and bool((data == 100 * flag + (rank() - 1) % size()).all())
        group.barrier()
    group.communicator.check()
    return right


def all_channels() -> list[str]:
    """Both kinds of channels, by the names of both times, over all ways."""
    return in_turn(
        ("memory channels put", memory_channels, False),
        ("memory channels get, by their old names", memory_channels, True),
        ("packets", packets, False, False),
        ("packets into registered scratch, by old names", packets, True, True),
        ("port channels by CudaIpc", port_channels, False, "CudaIpc"),
        ("port channels by CudaIpc, by their old names", port_channels, True, "CudaIpc"),
        ("port channels by Ethernet", port_channels, False, "Ethernet"),
    )


def in_turn(*things: tuple[Any, ...]) -> list[str]:
    """Does one thing after the other, each in a group of its own, and says how far it is."""
    done = []
    for at, (words, check, *arguments) in enumerate(things):
        began = time.monotonic()
        assert check(f"group{at}", *arguments), f"rank {rank()}: {words}: wrong"
        print(f"rank {rank()}: {words}: right, {time.monotonic() - began:.2f} s", flush=True)
        done.append(words)
    return done


@pytest.mark.parametrize("ranks", [2, 4])
def test_channels_of_all_kinds_reach_other_processes_memory(world: World, ranks: int) -> None:
    running = world.start(ranks, all_channels)
    done = running.results(SECONDS_ALL)
    print(running.children[0].output)
    assert [len(each) for each in done] == [7] * ranks


def inside_a_pool(name: str) -> bool:
    """Arrays of cupy's pool: several in one allocation."""
    group = join(name)
    connections = group.make_connection(others(), Transport.CudaIpc)
    whole = cupy.zeros(4096, dtype=cupy.int32)
    arrays = [whole[256 * (1 + at) : 256 * (2 + at)] for at in range(3)]
    arrays[0][:] = rank() + 1
    synchronize()
    memories = [group.register_tensor_with_connections(array, connections) for array in arrays]
    peer = 1 - rank()
    group.barrier()
    for at in (1, 2):
        connections[peer].write(memories[at][peer], 512, memories[0][rank()], 0, 512)
    connections[peer].flush()
    group.barrier()
    synchronize()
    right = all(bool((array[128:] == peer + 1).all()) and not bool(array[:128].any()) for array in arrays[1:])
    group.barrier()
    return right and not bool(whole[:256].any()) and not bool(whole[1024:].any())


def host_signals_a_spinning_kernel(name: str) -> bool:
    """Calls of the host go on while a kernel of the same process spins on the default stream."""
    group = join(name)
    connections = group.make_connection(others(), Transport.CudaIpc)
    peer = 1 - rank()
    memory = parts(1024)
    memories = group.register_tensor_with_connections(memory, connections)
    semaphore = mscclpp.Host2DeviceSemaphore(group.make_semaphores(connections)[peer])
    told = mscclpp.GpuBuffer(2, dtype=cupy.int32)
    run = kernel("wait_for_host")
    assert len(semaphore.device_handle().raw) == 32
    group.barrier()
    run.launch_kernel(pack(semaphore.device_handle().raw, told, 3), 1, 1)
    time.sleep(0.3)
    for _ in range(3):
        connections[peer].write(memories[peer], 4096 * rank(), memories[rank()], 4096 * rank(), 4096)
        semaphore.signal()
    connections[peer].flush()
    synchronize()
    group.communicator.check()
    group.barrier()
    got = [int(told[0]), int(told[1]), int(memory[1024 * peer])]
    group.barrier()
    return got == [3, 0, peer + 1]


def by_ids(name: str) -> bool:
    group = join(name)
    connections = group.make_connection(others(), Transport.CudaIpc)
    peer = 1 - rank()
    source = mscclpp.GpuBuffer(64, dtype=cupy.int32)
    target = mscclpp.GpuBuffer(64, dtype=cupy.int32)
    source += rank() + 1
    synchronize()
    service = ProxyService()
    base = group.register_semaphore_with_proxy(service, connections)[peer]
    sources = group.register_memory_with_proxy(service, source, connections)
    targets = group.register_memory_with_proxy(service, target, connections)
    run = kernel("base_put")
    service.start_proxy()
    group.barrier()
    run.launch_kernel(pack(base.device_handle().raw, targets[peer], sources[rank()], 256), 1, 1)
    synchronize()
    group.communicator.check()
    got = int(target.sum())
    group.barrier()
    service.stop_proxy()
    return got == 64 * (peer + 1)


def other_ways() -> list[str]:
    return in_turn(
        ("memory inside a larger allocation is written where it is", inside_a_pool),
        ("the host writes and signals while a kernel spins", host_signals_a_spinning_kernel),
        ("kernels name memories by their ids", by_ids),
    )


def test_pools_spinning_kernels_and_ids_between_two_processes(world: World) -> None:
    running = world.start(2, other_ways)
    done = running.results(SECONDS_ALL)
    print(running.children[0].output)
    assert [len(each) for each in done] == [3, 3]


def kernel_waits_for_the_dead(what: str) -> str:
    """Rank 1 dies while a kernel of rank 0 waits for it."""
    import os
    import signal

    group = join()
    connections = group.make_connection(others(), Transport.CudaIpc)
    memory = parts(1024)
    channels = group.make_memory_channels(memory, connections)
    semaphore = mscclpp.Host2DeviceSemaphore(group.make_semaphores(connections)[1 - rank()])
    told = mscclpp.GpuBuffer(2, dtype=cupy.int32)
    run = kernel("wait_for_host" if what == "host" else "memory_put_all")
    known = handles(channels)
    group.barrier()
    if rank() == 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "host":
        run.launch_kernel(pack(semaphore.device_handle().raw, told, 1), 1, 1)
    else:
        run.launch_kernel(pack(known, rank(), size(), 4096), 1, 64)
    synchronize()
    try:
        group.communicator.check()
    except mscclpp.Error as error:
        return str(error)
    return "nothing was said"


@pytest.mark.parametrize("what", ["host", "memory"])
def test_a_kernel_that_waits_for_a_dead_rank_ends_and_the_rank_is_named(world: World, what: str) -> None:
    running = world.start(2, kernel_waits_for_the_dead, what)
    running.children[1].wait(SECONDS)
    began = time.monotonic()
    assert "rank 1" in running.result(0, SECONDS)
    assert time.monotonic() - began < 20


def collectives() -> list[float]:
    group = join()
    together = group.collectives()
    stream = cupy.cuda.Stream(non_blocking=True)
    small = mscclpp.GpuBuffer(1000, dtype=cupy.float32)
    large = mscclpp.GpuBuffer(4 << 20, dtype=cupy.float32)
    gathered = mscclpp.GpuBuffer(1000 * size(), dtype=cupy.float32)
    small += rank() + 1
    large += rank() + 1
    synchronize()
    together.all_gather(gathered, small, stream=stream)
    together.all_reduce(small, stream=stream)
    together.all_reduce(large, op="MAX", stream=stream)
    stream.synchronize()
    together.check()
    got = [float(small.min()), float(small.max()), float(large.min()), float(gathered.sum())]
    group.barrier()
    together.close()
    return got


@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_reduce_and_gather_on_a_stream(world: World, ranks: int) -> None:
    total = ranks * (ranks + 1) / 2
    expected = [total, total, float(ranks), 1000 * total]
    assert world.run(ranks, collectives, deadline=SECONDS) == [expected] * ranks


def test_semaphores_of_all_kinds_have_handles_of_the_headers_sizes() -> None:
    from ringfold import _native

    sizes = _native.port_handle_sizes()
    assert sizes["MemoryChannelDeviceHandle"] == 64 and sizes["PortChannelDeviceHandle"] == 96
    assert MemoryDevice2DeviceSemaphore is mscclpp.SmDevice2DeviceSemaphore
    assert ctypes.sizeof(ctypes.c_void_p) == 8
