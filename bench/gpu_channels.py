"""Latencies and rates of channels between two processes on one GPU, by device events. Run it under MPS:
``scripts/gpu-suite figures`` does, or start the service yourself.

    python bench/gpu_channels.py [--rounds 1000] [--repeats 7]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
# The whole measurement is expected to take about 10 s.
LIMIT_S = 120


def device_us(cupy: Any, launch: Callable[[], None], repeats: int, meet: Callable[[], None]) -> list[float]:
    """The time of each of these launches, in µs. All ranks start together."""
    # Sleep while waiting: a thread that polls the driver blocks the proxy's calls.
    begin, end = cupy.cuda.Event(block=True), cupy.cuda.Event(block=True)
    spent = []
    for _ in range(repeats):
        meet()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        spent.append(1000 * cupy.cuda.get_elapsed_time(begin, end))
    return spent


def round_trips(rank: int, trio: str, rounds: int, repeats: int) -> None:
    """One of the two ranks: signals, and puts through the proxies."""
    import cupy
    import mscclpp

    group = mscclpp.CommGroup(interfaceIpPortTrio=trio, rank=rank, size=2)
    other = 1 - rank
    connections = group.make_connection([other], mscclpp.Transport.CudaIpc)
    staged = mscclpp.EndpointConfig(mscclpp.Transport.CudaIpc, through_host=True)
    staged_connections = group.make_connection([other], staged)
    memory = mscclpp.GpuBuffer(1 << 18, dtype=cupy.int32)

    def handle_of(channel: Any) -> Any:
        return cupy.asarray(memoryview(channel.device_handle().raw), dtype=cupy.uint8)

    def kernel(name: str) -> Any:
        return mscclpp.utils.KernelBuilder(
            file="gpu_channels.cu", kernel_name=name, file_dir=HERE
        ).get_compiled_kernel()

    # Kept as long as kernels use their handles.
    memory_channels = group.make_memory_channels(memory, connections)
    proxy = mscclpp.ProxyService()
    port_channels = group.make_port_channels(proxy, memory, connections)
    staged_channels = group.make_port_channels(proxy, memory, staged_connections)
    by_memory, by_port = handle_of(memory_channels[other]), handle_of(port_channels[other])
    through_host = handle_of(staged_channels[other])
    signals, puts = kernel("signals"), kernel("puts")
    proxy.start_proxy()
    cupy.cuda.runtime.deviceSynchronize()

    def measure(what: str, launch: Callable[[], None], part: float) -> None:
        launch()
        cupy.cuda.runtime.deviceSynchronize()
        each = [part * us / rounds for us in device_us(cupy, launch, repeats, group.barrier)]
        if rank == 0:
            low, high = min(each), max(each)
            print(f"{what:58} {statistics.median(each):8.2f} us  ({low:.2f} to {high:.2f})", flush=True)

    pack = mscclpp.utils.pack
    few = pack(by_memory, rank, rounds)
    measure("signal, device to device, round trip", lambda: signals.launch_kernel(few, 1, 32, 0, None), 1)
    from ctypes import c_size_t

    for channel, how in ((by_port, ""), (through_host, ", through host memory")):
        for nbytes in (8, 4096, 64 << 10, 1 << 20):
            order = pack(channel, rank, rounds, c_size_t(nbytes))
            measure(
                f"put of {nbytes} bytes, push to arrival{how}",
                lambda order=order: puts.launch_kernel(order, 1, 32, 0, None),  # type: ignore[misc]
                0.5,
            )
    proxy.stop_proxy()
    group.barrier()


def rate(repeats: int) -> None:
    """Triggers per second through a FIFO that a loop of the engine empties."""
    import cupy
    import mscclpp
    from mscclpp.utils import KernelBuilder, pack

    kernel = KernelBuilder(
        file="gpu_channels.cu", kernel_name="triggers", file_dir=HERE
    ).get_compiled_kernel()
    fifo = mscclpp.Fifo(512)._native
    for blocks, threads in ((1, 1), (1, 2), (1, 32), (8, 32), (32, 256), (128, 1024)):
        each = 1 + 200_000 // (blocks * threads)
        total = each * blocks * threads
        rates = []
        for _ in range(repeats):
            began = time.perf_counter()
            kernel.launch_kernel(pack(fifo.handle, each), blocks, threads, 0, None)
            if fifo.drain(total, LIMIT_S) != total:
                raise RuntimeError("the FIFO was not filled in time")
            rates.append(total / (time.perf_counter() - began) / 1e6)
            cupy.cuda.runtime.deviceSynchronize()
        what = f"FIFO, {blocks} x {threads} threads push"
        low, high = min(rates), max(rates)
        print(
            f"{what:58} {statistics.median(rates):8.2f} M triggers/s  ({low:.2f} to {high:.2f})", flush=True
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        round_trips(arguments.rank, arguments.at, arguments.rounds, arguments.repeats)
        return 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"lo:127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, "--at", at, "--rounds", str(arguments.rounds)]
    ranks = [
        subprocess.Popen([*command, "--repeats", str(arguments.repeats), "--rank", str(rank)])
        for rank in (0, 1)
    ]
    try:
        codes = [rank.wait(LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    rate(arguments.repeats)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
