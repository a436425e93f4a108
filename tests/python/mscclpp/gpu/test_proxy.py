"""FIFOs, semaphores and proxies on a GPU: kernels push, the proxy of their process does it.

Ranks are processes that share one GPU. Without MPS they take turns on it, so rounds are few. Torch and a device take
seconds to start, so a pair of processes plays several scenes, one after the other.
"""

from __future__ import annotations

import os
import signal
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from ringfold import _native
from ringfold._error import PortError
from world import World, meet, others, rank

if TYPE_CHECKING:
    import torch
    from mscclpp import Communicator

pytestmark = pytest.mark.usefixtures("needs_gpu", "warm_gpu")

# For one wait, and for processes with all their scenes.
LONG = 20.0
PAIR_DEADLINE = 90.0
# How soon waits end that are ended by somebody.
PROMPT = 10.0
NBYTES = 1 << 20

SOURCE = r"""
#include <mscclpp/port_channel_device.hpp>
using namespace mscclpp;
using u64 = unsigned long long;

// Each thread pushes so many triggers, and waits for its last one.
extern "C" __global__ void push_many(FifoDeviceHandle fifo, u64 each, int* errors) {
  const u64 thread = blockIdx.x * blockDim.x + threadIdx.x;
  u64 last = 0;
  for (u64 count = 0; count < each; ++count) {
    ProxyTrigger trigger;
    trigger.fst = thread;
    trigger.snd = count | (count & 1) << 63;
    const u64 at = fifo.push(trigger);
    if (at == ~u64(0) || (count > 0 && at <= last)) atomicAdd(errors, 1);
    last = at;
  }
  if (fifo.sync(last) != 0 || !fifo.poll(last)) atomicAdd(errors, 1);
}

// Tells the other rank something again and again, and checks what it tells. One block.
extern "C" __global__ void exchange(PortChannelDeviceHandle channel, u64* outbox, const u64* inbox, u64 words,
                                    u64 rounds, u64 me, u64* errors) {
  for (u64 round = 0; round < rounds; ++round) {
    const u64 count = 1 + (round * 977) % words;
    for (u64 at = threadIdx.x; at < count; at += blockDim.x) outbox[at] = (me << 60) | (round << 32) | at;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
      int error = 0;
      if (round % 3 == 0) {
        error |= channel.put(0, 8 * count);
        error |= channel.signal();
        error |= channel.flush();
      } else if (round % 3 == 1) {
        error |= channel.putWithSignal(0, 8 * count);
        error |= channel.flush();
      } else {
        error |= channel.putWithSignalAndFlush(0, 8 * count);
      }
      error |= channel.wait();
      if (error != 0) atomicAdd(errors, 1ull << 32);
    }
    __syncthreads();
    u64 wrong = 0;
    for (u64 at = threadIdx.x; at < count; at += blockDim.x) {
      const u64 there = *reinterpret_cast<const volatile u64*>(inbox + at);
      wrong += there != (((1 - me) << 60) | (round << 32) | at);
    }
    if (wrong != 0) atomicAdd(errors, wrong);
    __syncthreads();
    // The other side may write again when it hears that this one has read.
    if (threadIdx.x == 0 && (channel.signal() | channel.wait()) != 0) atomicAdd(errors, 1ull << 32);
    __syncthreads();
  }
}

extern "C" __global__ void wait_once(PortChannelDeviceHandle channel, int* result) { *result = channel.wait(); }

// Blocks that fill the device. The first one waits for a signal, the others for the first one. The last to start says so.
extern "C" __global__ void __launch_bounds__(1024, 2)
    wait_everywhere(PortChannelDeviceHandle channel, u64 blocks, u64* words, u64* started) {
  if (threadIdx.x == 0) {
    if (atomicAdd(&words[0], 1ull) + 1 == blocks) *reinterpret_cast<volatile u64*>(started) = 1;
    volatile u64* result = &words[1];
    if (blockIdx.x == 0) {
      *result = 1 + channel.wait();
    } else {
      POLL_MAYBE_JAILBREAK(*result == 0, -1);
    }
  }
  // All threads keep their places.
  __syncthreads();
}

extern "C" __global__ void signal_many(PortChannelDeviceHandle channel, u64 count, u64 flushes, int* errors) {
  for (u64 signals = 0; signals < count; ++signals) {
    if (channel.signal() != 0) atomicAdd(errors, 1);
  }
  if (flushes != 0 && channel.flush() != 0) atomicAdd(errors, 1);
}

// One rank puts eight bytes and signals, the other one answers so. What each round trip took is left behind.
extern "C" __global__ void answer(PortChannelDeviceHandle channel, u64 rounds, u64 me, u64* took, int* errors) {
  for (u64 round = 0; round < rounds; ++round) {
    u64 begun, done;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun)::"memory");
    int error = 0;
    if (me == 0) error |= channel.putWithSignal(0, 8);
    error |= channel.wait();
    if (me == 1) error |= channel.putWithSignal(0, 8);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(done)::"memory");
    took[round] = done - begun;
    if (error != 0) { atomicAdd(errors, 1); return; }
  }
}

extern "C" __global__ void add_one(float* values, u64 count) {
  for (u64 at = threadIdx.x; at < count; at += blockDim.x) values[at] += 1.0f;
}
"""


class Kernels:
    """The kernels above, loaded before any of them runs."""

    NAMES = ("push_many", "exchange", "wait_once", "wait_everywhere", "signal_many", "answer", "add_one")

    def __init__(self) -> None:
        image = _native.cuda_compile(SOURCE, "proxy.cu", _native.cuda_arch(0), {}, [], ["-std=c++17"])
        self._module = _native.CudaModule(image, 0)
        self._functions = {name: self._module.function(name) for name in self.NAMES}

    def launch(
        self, name: str, stream: torch.cuda.Stream, *arguments: Any, grid: int = 1, block: int = 1
    ) -> None:
        """Whole numbers are 64 bits wide, tensors are their address, handles are bytes."""
        packed = b""
        for argument in arguments:
            if isinstance(argument, bytes):
                packed += argument
            else:
                packed += struct.pack("<Q", argument if isinstance(argument, int) else argument.data_ptr())
        self._functions[name].launch(packed, (grid, 1, 1), (block, 1, 1), 0, stream.cuda_stream)


@cache
def kernels() -> Kernels:
    """Those of this process."""
    return Kernels()


def finish(stream: torch.cuda.Stream, port: _native.Port | None = None, seconds: float = LONG) -> None:
    """Waits until a stream is idle; if it takes too long, its waits are ended and the test fails."""
    until = time.monotonic() + seconds
    while not stream.query():
        if time.monotonic() > until:
            if port is not None:
                port.abort("a test took too long")
                stream.synchronize()
            raise AssertionError("a kernel did not end in time")
        time.sleep(0.0005)


def new_stream() -> torch.cuda.Stream:
    """A stream that waits for no other."""
    import torch

    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@dataclass
class End:
    """One of two ranks, connected with the other."""

    communicator: Communicator
    proxy: _native.PortProxy
    semaphore: _native.PortSemaphore
    channel: _native.PortChannel
    inbox: torch.Tensor
    outbox: torch.Tensor
    kernels: Kernels
    stream: torch.cuda.Stream
    errors: torch.Tensor
    registered: list[_native.PortMemory]

    @property
    def port(self) -> _native.Port:
        return self.communicator.port

    def meet(self) -> None:
        """Everything before is done on both ranks."""
        import torch

        torch.cuda.synchronize()
        self.communicator.bootstrap().barrier()


# The scene that is played: each one has a meeting of its own.
scene = "only"


def play(transport: str, names: list[str]) -> list[str]:
    """Plays scenes: functions of this module that take the transport. Gives what they have to tell."""
    global scene
    told = []
    for scene in names:
        begun = time.monotonic()
        print(f"--- {scene}", flush=True)
        words = globals()[scene](transport)
        told += [words] if words else []
        print(f"    took {time.monotonic() - begun:.2f} s", flush=True)
    return told


def connected(transport: str, fifo_size: int = 128, through_host: bool = False) -> End:
    """Connects with the other rank. All memory and all code is there before a kernel runs."""
    import torch
    from mscclpp import Communicator, EndpointConfig, RegisteredMemory, Transport

    way, peer = Transport[transport], others()[0]
    torch.cuda.set_device(0)
    inbox, outbox = (torch.zeros(NBYTES // 8, dtype=torch.int64, device="cuda") for _ in range(2))
    errors = torch.zeros(64, dtype=torch.int64, device="cuda")
    communicator = Communicator(meet(scene))
    port = communicator.port
    connection = communicator.connect(EndpointConfig(way, through_host=through_host), peer).get()
    building = communicator.build_semaphore(connection, peer)
    mine = [port.register(box.data_ptr(), NBYTES, way.value, None, box) for box in (inbox, outbox)]
    communicator.send_memory(RegisteredMemory(mine[0]), peer)
    theirs = communicator.recv_memory(peer).get().native
    proxy = _native.PortProxy(port, fifo_size)
    semaphore = building.get().native
    channel = proxy.channel(
        proxy.add_semaphore(semaphore), proxy.add_memory(theirs), proxy.add_memory(mine[1])
    )
    assert len(channel.handle) == 96
    end = End(communicator, proxy, semaphore, channel, inbox, outbox, kernels(), new_stream(), errors, mine)
    end.meet()
    return end


# --- the FIFO ----------------------------------------------------------------------------------------------------------


def push_and_poll(size: int) -> None:
    import torch

    grid, block, each = 4, 64, 20
    fifo = _native.PortFifo(size, True)
    stream, errors = new_stream(), torch.zeros(2, dtype=torch.int32, device="cuda")
    code = kernels()
    torch.cuda.synchronize()
    code.launch("push_many", stream, fifo.handle, each, errors, grid=grid, block=block)
    expected, until = [0] * (grid * block), time.monotonic() + LONG
    while sum(expected) < grid * block * each:
        found = fifo.poll()
        if found is None:
            assert time.monotonic() < until, f"{sum(expected)} triggers have come"
            continue
        thread, count = found
        assert expected[thread] == count
        expected[thread] += 1
        assert fifo.pop()
    finish(stream)
    assert fifo.poll() is None
    assert errors[0].item() == 0
    with pytest.raises(PortError, match="kernels push"):
        fifo.push(1, 2)


def rate_of_a_fifo(grid: int, block: int) -> str:
    import torch

    fifo = _native.PortFifo(512, True)
    stream, errors = new_stream(), torch.zeros(2, dtype=torch.int32, device="cuda")
    each = 1 + 500_000 // (grid * block)
    code = kernels()
    torch.cuda.synchronize()
    rates = []
    for _ in range(3):
        begun = time.monotonic()
        code.launch("push_many", stream, fifo.handle, each, errors, grid=grid, block=block)
        assert fifo.drain(each * grid * block, LONG) == each * grid * block
        rates.append(each * grid * block / (time.monotonic() - begun))
        finish(stream)
    assert errors[0].item() == 0
    return f"FIFO, {grid} x {block} threads push: {statistics.median(rates) / 1e6:.2f} M triggers/s"


def fifos() -> list[str]:
    for size in (1, 7, 512):
        print(f"--- size {size}", flush=True)
        push_and_poll(size)
    return [rate_of_a_fifo(grid, block) for grid, block in [(1, 1), (1, 32), (8, 32), (32, 256), (128, 1024)]]


def test_what_many_threads_push_is_polled_once_and_in_order(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    [rates] = world.run(1, fifos, deadline=PAIR_DEADLINE)
    with capsys.disabled():
        print("", *rates, sep="\n")


# --- two ranks ---------------------------------------------------------------------------------------------------------


def exchange_rounds(transport: str) -> None:
    end, rounds = connected(transport), 30
    end.proxy.start()
    arguments = (end.channel.handle, end.outbox, end.inbox, NBYTES // 8, rounds, rank(), end.errors)
    end.kernels.launch("exchange", end.stream, *arguments, block=256)
    finish(end.stream, end.port)
    end.meet()
    end.proxy.stop()
    assert (end.errors[0].item(), end.port.failure()) == (0, None)


def push_and_stop(transport: str) -> None:
    end = connected(transport, fifo_size=512)
    view, heard = end.semaphore.host_to_host(), 0
    for _ in range(3):
        end.kernels.launch("signal_many", end.stream, end.channel.handle, 200, 0, end.errors)
        finish(end.stream, end.port)
        # Pushed before it was started, or before it was stopped: it is done.
        end.proxy.start()
        end.proxy.stop()
        for _ in range(200):
            view.wait(LONG)
            heard += 1
        end.meet()
    assert (heard, end.errors[0].item()) == (600, 0)


def wait_in_vain(transport: str) -> None:
    end = connected(transport)
    end.proxy.start()
    end.port.set_spin_seconds(0.5)
    begun = time.monotonic()
    if rank() == 0:
        end.kernels.launch("wait_once", end.stream, end.channel.handle, end.errors)
        finish(end.stream, end.port)
    while end.port.failure() is None:
        assert time.monotonic() < begun + LONG
        time.sleep(0.001)
    took = time.monotonic() - begun
    with pytest.raises(PortError, match="timed out"):
        end.channel.signal()
    assert end.errors[0].item() == (1 if rank() == 0 else 0)
    failure = end.port.failure()
    assert failure is not None and "waiting for a signal from rank 1" in failure, failure
    assert 0.4 < took < PROMPT


def rates(transport: str) -> str:
    """Triggers a second, and microseconds from a put to its arrival."""
    import torch

    triggers, rounds = (200_000, 200) if transport == "CudaIpc" else (20_000, 100)

    end = connected(transport, fifo_size=512)
    end.proxy.start()
    view, best = end.semaphore.host_to_host(), 0.0
    times = torch.zeros(rounds, dtype=torch.int64, device="cuda")
    end.meet()
    for _ in range(3):
        if rank() == 0:
            begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record(end.stream)
            end.kernels.launch("signal_many", end.stream, end.channel.handle, triggers, 1, end.errors)
            done.record(end.stream)
            finish(end.stream, end.port)
            best = max(best, triggers / (begun.elapsed_time(done) / 1e3))
        end.meet()
    # What rank 0 has signalled so far is none of the answers: a channel of its own counts from here.
    semaphore = end.communicator.build_semaphore(_connection(end), others()[0]).get().native
    channel = end.proxy.channel(end.proxy.add_semaphore(semaphore), 0, 1)
    handle = channel.handle
    end.meet()
    end.kernels.launch("answer", end.stream, handle, rounds, rank(), times, end.errors)
    finish(end.stream, end.port)
    end.meet()
    end.proxy.stop()
    del view
    took = sorted(time_ns / 2e3 for time_ns in times[rounds // 10 :].tolist())
    assert end.errors[0].item() == 0
    if rank() != 0:
        return ""
    assert best > 1000
    return (
        f"{transport}: {best:,.0f} triggers/s from one thread, from put to arrival {statistics.median(took):.1f} us "
        f"(least {took[0]:.1f}, nine of ten {took[len(took) * 9 // 10]:.1f})"
    )


def fill_the_device(end: End, nbytes: int, blocks_per_multiprocessor: int | None = None) -> int:
    """Rank 1 occupies every multiprocessor until a put of rank 0 arrives. Gives 1, or 1 and the error of its wait."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    each = blocks_per_multiprocessor or properties.max_threads_per_multi_processor // 1024
    blocks = properties.multi_processor_count * each
    words = torch.zeros(2, dtype=torch.int64, device="cuda")
    started = torch.zeros(1, dtype=torch.int64).pin_memory()
    end.outbox.copy_(torch.arange(NBYTES // 8, device="cuda"))
    end.proxy.start()
    end.meet()
    barrier = end.communicator.bootstrap().barrier
    if rank() == 0:
        barrier()
        end.channel.put_with_signal(0, 0, nbytes)
        return 1
    end.kernels.launch(
        "wait_everywhere", end.stream, end.channel.handle, blocks, words, started, grid=blocks, block=1024
    )
    until = time.monotonic() + LONG
    while started.item() == 0:
        assert time.monotonic() < until, "not all blocks run at once"
        time.sleep(0.0005)
    barrier()
    finish(end.stream, end.port)
    return int(words[1].item())


def put_into_a_full_device(transport: str) -> None:
    arrive_while_a_kernel_waits(connected(transport, through_host=True), NBYTES)


def put_beside_a_block_on_every_multiprocessor(transport: str) -> None:
    """A put by the device needs only a place on one of them."""
    arrive_while_a_kernel_waits(connected(transport), 4096, 1)


def arrive_while_a_kernel_waits(end: End, nbytes: int, blocks_per_multiprocessor: int | None = None) -> None:
    import torch

    begun = time.monotonic()
    result = fill_the_device(end, nbytes, blocks_per_multiprocessor)
    took = time.monotonic() - begun
    end.meet()
    end.proxy.stop()
    assert (result, end.port.failure()) == (1, None)
    if rank() == 1:
        assert torch.equal(end.inbox[: nbytes // 8], torch.arange(nbytes // 8, device="cuda"))
    # Far below the limit of a wait.
    assert took < PROMPT


def exchange_through_the_host(transport: str) -> None:
    end, rounds = connected(transport, through_host=True), 30
    end.proxy.start()
    arguments = (end.channel.handle, end.outbox, end.inbox, NBYTES // 8, rounds, rank(), end.errors)
    end.kernels.launch("exchange", end.stream, *arguments, block=256)
    finish(end.stream, end.port)
    end.meet()
    end.proxy.stop()
    assert (end.errors[0].item(), end.port.failure()) == (0, None)


def put_in_vain_into_a_full_device(transport: str) -> None:
    """Without the way through the host the put cannot start; the wait ends, and the putting rank says what to do."""
    end = connected(transport)
    end.port.set_spin_seconds(2.0)
    # As soon as one block gives up, the put may start and arrive for the others.
    fill_the_device(end, 4096)
    until = time.monotonic() + LONG
    while (failure := end.port.failure()) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    # Any of the blocks may have reported.
    assert "timed out" in failure and "waiting for a signal" in failure, failure
    if rank() == 0:
        assert "through_host=True" in failure, failure


def _connection(end: End) -> Any:
    from mscclpp._connection import Connection

    return Connection(end.semaphore.connection, end.communicator)


def capture_beside_the_proxy(transport: str) -> None:
    import torch

    end = connected(transport)
    end.proxy.start()
    values = torch.zeros(1024, device="cuda")
    side, graph, ends, puts = new_stream(), torch.cuda.CUDAGraph(), threading.Event(), 0
    end.meet()

    def keep_busy() -> None:
        nonlocal puts
        while not ends.is_set():
            end.channel.put(0, 0, 4096)
            end.channel.flush(LONG)
            puts += 1

    # The proxy's thread copies, and waits for its stream, all the while: a capture forbids that to threads that do not say
    # that it knows better.
    busy = threading.Thread(target=keep_busy)
    busy.start()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="global")
        for _ in range(50):
            end.kernels.launch("add_one", side, values, 1024, block=256)
            time.sleep(0.002)
        graph.capture_end()
    ends.set()
    busy.join(LONG)
    for _ in range(3):
        graph.replay()
    end.meet()
    # A channel in a graph: each replay signals, flushes and waits.
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again, stream=side, capture_error_mode="global"):
        end.kernels.launch("signal_many", side, end.channel.handle, 1, 1, end.errors)
        end.kernels.launch("wait_once", side, end.channel.handle, end.errors)
    end.meet()
    for _ in range(5):
        again.replay()
    finish(torch.cuda.current_stream(), end.port)
    end.meet()
    end.proxy.stop()
    value, errors = values.sum().item() / 1024, end.errors[0].item()
    assert (value, errors, end.port.failure()) == (150.0, 0, None)
    assert puts > 0


# The last scene ends its port, and with it waits of the process that belong to no port.
SCENES = {
    "CudaIpc": [
        "exchange_rounds",
        "exchange_through_the_host",
        "put_into_a_full_device",
        "put_beside_a_block_on_every_multiprocessor",
        "push_and_stop",
        "capture_beside_the_proxy",
        "rates",
        "wait_in_vain",
    ],
    "Ethernet": ["exchange_rounds", "push_and_stop", "capture_beside_the_proxy", "rates", "wait_in_vain"],
    "SharedMemory": ["exchange_rounds"],
}


@pytest.mark.parametrize("transport", SCENES)
def test_a_proxy_executes_what_kernels_push_or_reports_why_not(
    world: World, transport: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = world.run(2, play, transport, SCENES[transport], deadline=PAIR_DEADLINE)
    with capsys.disabled():
        print("", *told[0], sep="\n")


def test_a_put_that_cannot_start_is_reported_with_the_remedy(world: World) -> None:
    if "CUDA_MPS_PIPE_DIRECTORY" not in os.environ:
        pytest.skip("needs MPS: without it the ranks take turns on the device, and the put can start")
    world.run(2, put_in_vain_into_a_full_device, "CudaIpc", deadline=PAIR_DEADLINE)


# The last ones: MPS may be shaken by a client that is killed.


def wait_for_the_dead(transport: str) -> tuple[str | None, float, int]:
    end = connected(transport)
    end.proxy.start()
    end.meet()
    print("ready", flush=True)
    if rank() == 0:
        time.sleep(PAIR_DEADLINE)
    end.kernels.launch("wait_once", end.stream, end.channel.handle, end.errors)
    print("waits", flush=True)
    begun = time.monotonic()
    finish(end.stream, end.port)
    took = time.monotonic() - begun
    return end.port.failure(), took, int(end.errors[0].item())


@pytest.mark.parametrize("transport", ["CudaIpc", "Ethernet"])
def test_when_a_rank_is_killed_kernels_that_wait_for_it_end(world: World, transport: str) -> None:
    running = world.start(2, wait_for_the_dead, transport)
    running.children[0].wait_for("ready", 2 * LONG)
    running.children[1].wait_for("waits", 2 * LONG)
    time.sleep(0.5)
    os.kill(running.children[0].pid, signal.SIGKILL)
    running.children, running.outcomes = running.children[1:], running.outcomes[1:]
    [(failure, took, result)] = running.results(PAIR_DEADLINE)
    assert failure is not None and "rank 0" in failure, failure
    assert took < PROMPT and result == 1
