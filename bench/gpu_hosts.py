"""GPU figures of an all-reduce between hosts, which are processes of one machine here, over loopback.

``gpu.py`` runs it as one of its jobs: half of the ranks are on each of two hosts. In turns with an all-reduce of tensors in host memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

TURNS, CALLS = 5, 3
SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)


def hosts_rank(
    rank: int, world: int, arguments: argparse.Namespace, tell: Callable[[str, float], None]
) -> None:
    """One rank of the job."""
    import torch
    import torchcomms
    from gpu import open_comm, slowest

    # A second group leaves room for kernels of ranks that no host would share.
    whole = open_comm()
    os.environ["RINGFOLD_HOST"] = f"host {rank * 2 // world}"
    device = torchcomms.new_comm("ringfold", torch.device("cuda", 0), "devices")
    host = torchcomms.new_comm("ringfold", torch.device("cpu"), "processors")
    for nbytes in SIZES:
        spent: dict[str, list[float]] = {"cuda": [], "cpu": []}
        tensors = {
            "cuda": (device, torch.zeros(nbytes // 4, device="cuda")),
            "cpu": (host, torch.zeros(nbytes // 4)),
        }
        for turn in range(TURNS + 1):
            for who, (comm, tensor) in tensors.items():
                torch.cuda.synchronize()
                host.barrier(False)
                began = time.perf_counter()
                for _ in range(CALLS):
                    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, False)
                torch.cuda.synchronize()
                if turn:
                    spent[who].append(slowest(whole, 1e6 * (time.perf_counter() - began) / CALLS))
        for who, each in spent.items():
            tell(f"{who} {nbytes}", statistics.median(each))
    for comm in (device, host, whole):
        comm.finalize()


def hosts_table(found: dict[int, dict[str, dict[str, float]]]) -> list[str]:
    """The figures of all numbers of ranks, in lines."""
    lines = []
    for world, kinds in found.items():
        figures = kinds.get("hosts", {})
        for nbytes in SIZES:
            cuda, cpu = figures.get(f"cuda {nbytes}"), figures.get(f"cpu {nbytes}")
            if cuda and cpu:
                lines.append(
                    f"{world:>5} {nbytes:>10} {cuda / 1000:12.2f} {cpu / 1000:12.2f} {cpu / cuda:6.2f}"
                )
    head = f"{'ranks':>5} {'bytes':>10} {'CUDA, ms':>12} {'host, ms':>12} {'ratio':>6}"
    what = f"all-reduce between two hosts over loopback, CUDA and host tensors in turns, medians of {TURNS}"
    return ["", what, head, *lines] if lines else []
