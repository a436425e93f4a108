"""Elastic all-reduces and shared state with CUDA tensors, among processes on one GPU; host tensors for comparison.

    python bench/gpu_elastic.py [--peers 2,4] [--mib 1,16,256] [--apart-mib 256] [--repeats 15]

Wall-clock times of blocking calls on the first peer, medians. Peers apart do not share memory, as on different hosts: their tensors
are staged through the host. Run it under CUDA's Multi-Process Service. It needs the packages of
this project on the path, and torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

# The time limit of all peers of one run.
LIMIT_S = 120.0
STATE_MIB = 512


def median_ms(call: Callable[[], object], repeats: int) -> str:
    """The median, least and longest time of a call."""
    import torch

    times = []
    for _ in range(3 + repeats):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1e3)
    times = times[3:]
    return f"{statistics.median(times):.3f} ms ({min(times):.3f} to {max(times):.3f})"


def run_peer(address: str, number: int, world: int, sizes: list[float], repeats: int) -> None:
    """One peer; the first one prints."""
    import pccl
    import torch

    apart = ", apart" if os.environ.get("RINGFOLD_SHARED_MEMORY") == "0" else ""

    def report(text: str) -> None:
        if number == 0:
            print(f"{world} peers{apart}, {text}", flush=True)

    quantised = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)
    with pccl.Communicator(address, name=f"p{number}") as comm:
        comm.connect()
        while comm.world_size < world:
            comm.update_topology()
        for mib in sizes:
            for where, options in (("cuda", None), ("cuda, quantised", quantised), ("cpu", None)):
                data = torch.ones(int(mib * (1 << 18)), device=where.split(",")[0])
                few = 5 if where == "cpu" and mib > 100 else repeats

                def reduce(
                    data: torch.Tensor = data, options: pccl.QuantizationOptions | None = options
                ) -> None:
                    comm.all_reduce(data, data, op=pccl.ReduceOp.AVG, quantization_options=options)

                report(f"all-reduce of {mib:g} MiB, {where}: {median_ms(reduce, few)}")
        if apart:
            return
        data = torch.ones(STATE_MIB << 18, device="cuda")
        state = pccl.SharedState([pccl.TensorInfo.from_torch(data, "data")])

        def sync() -> None:
            comm.sync_shared_state(state)
            state.push_revision()

        report(f"sync of {STATE_MIB} MiB on the device: {median_ms(sync, repeats)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default="2,4", help="the numbers of peers")
    parser.add_argument("--mib", default="0.25,1,16,64,256", help="the sizes")
    parser.add_argument("--apart-mib", default="256", help="the sizes between peers that share no memory")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        address, number, world = options.peer.split(",")
        sizes = [float(size) for size in options.mib.split(",")]
        run_peer(address, int(number), int(world), sizes, options.repeats)
        return 0
    for world in map(int, options.peers.split(",")):
        near = run_peers(world, options.mib, options.repeats, {})
        apart = run_peers(world, options.apart_mib, options.repeats, {"RINGFOLD_SHARED_MEMORY": "0"})
        if not (near and apart):
            return 1
    return 0


def run_peers(world: int, sizes: str, repeats: int, env: dict[str, str]) -> bool:
    """Runs the peers of one run. Returns whether all succeeded."""
    if not sizes:
        return True
    import pccl

    master = pccl.MasterNode("127.0.0.1:0")
    master.run()
    same = ["--mib", sizes, "--repeats", str(repeats)]
    peers = [
        subprocess.Popen(
            [sys.executable, __file__, "--peer", f"{master.address},{number},{world}", *same],
            env=os.environ | env,
        )
        for number in range(world)
    ]
    try:
        deadline = time.monotonic() + LIMIT_S
        return not any([peer.wait(max(0.0, deadline - time.monotonic())) for peer in peers])
    finally:
        for peer in peers:
            peer.kill()
        master.interrupt()
        master.wait()


if __name__ == "__main__":
    sys.exit(main())
