"""Figures of the GPU: all-reduces among processes on one GPU, beside torch's symmetric memory, and channels (``gpu_channels.py``).
By device events, medians. Run it under MPS: ``scripts/gpu-suite figures`` does, or start the service yourself.

    python bench/gpu.py [--ranks 2,4,8] [--mib 256] [--repeats 15] [--json FILE] [--without-torch] [--without-channels]

The floor of an all-reduce of n ranks with S bytes each on one GPU is 2·n·S bytes of memory traffic, at the rate of a copy of as many
bytes in the same run. It needs the packages of this project on the path, and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What one job may take; some 10 s are expected, and more if kernels are compiled for the first time.
LIMIT_S = 170
# Calls between two events, and in a captured graph.
BATCH, CAPTURED = 5, 20
SMALL_BYTES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
MARK = "FIGURES "


# --- one rank --------------------------------------------------------------------------------------------------------


def batches(act: Callable[[], object], calls: int, repeats: int) -> float:
    """The median time of a call, in µs. The call before the first event has all ranks begin together."""
    import torch

    spent: list[float] = []
    for repeat in range(repeats + 2):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        act()
        begin.record()
        for _ in range(calls):
            act()
        end.record()
        end.synchronize()
        if repeat >= 2:
            spent.append(1000 * begin.elapsed_time(end) / calls)
    return statistics.median(spent)


def captured(act: Callable[[], object], repeats: int) -> float:
    """The same, of calls in a graph."""
    import torch

    act()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            act()
    return batches(graph.replay, 3, repeats) / CAPTURED


def copy_rate(nbytes: int, repeats: int) -> float:
    """Bytes per second that a copy reads and writes."""
    import torch

    source = torch.zeros(nbytes // 4, device="cuda")
    target = torch.empty_like(source)
    spent = batches(lambda: target.copy_(source), BATCH, repeats)
    return 2 * nbytes / spent * 1e6


def our_rank(rank: int, world: int, mib: int, repeats: int) -> dict[str, Any]:
    import torch
    import torchcomms
    from torchcomms import ReduceOp

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    comm = torchcomms.new_comm("nccl", device, "bench", timeout=60.0, abort_process_on_timeout_or_error=False)
    engine: Any = comm.get_backend_impl()

    def slowest(us: float) -> float:
        everyone = torch.empty(world, dtype=torch.float64)
        comm.all_gather_single(everyone, torch.tensor([us], dtype=torch.float64), False)
        return float(everyone.max())

    def reduced(tensor: torch.Tensor) -> Callable[[], object]:
        # Zeros stay zeros, however often.
        return lambda: comm.all_reduce(tensor, ReduceOp.SUM, False)

    large = torch.zeros(mib * (1 << 20) // 4, device=device)
    figures: dict[str, Any] = {"staged_us": slowest(batches(reduced(large), BATCH, repeats))}
    engine.register_tensor(large)
    figures["direct_us"] = slowest(batches(reduced(large), BATCH, repeats))
    half = large.to(torch.bfloat16)
    engine.register_tensor(half)
    figures["direct_bf16_us"] = slowest(batches(reduced(half), BATCH, repeats))
    figures["small_us"] = {}
    for nbytes in SMALL_BYTES:
        small = torch.zeros(nbytes // 4, device=device)
        figures["small_us"][nbytes] = slowest(captured(reduced(small), repeats))
    torch.cuda.synchronize()
    comm.barrier(False)
    del half
    if rank == 0:
        figures["copy_bytes_per_s"] = copy_rate(world * mib << 20, repeats)
    comm.barrier(False)
    comm.finalize()
    return figures


def torch_rank(rank: int, world: int, mib: int, repeats: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    ops = torch.ops.symm_mem

    def shared(nbytes: int) -> torch.Tensor:
        tensor = symmetric.empty(nbytes // 4, dtype=torch.float32, device=device)
        symmetric.rendezvous(tensor, name)
        return tensor.zero_()

    def slowest(us: float) -> float:
        told = torch.tensor([us], dtype=torch.float64)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return float(told)

    large = shared(mib << 20)
    figures: dict[str, Any] = {
        "direct_us": slowest(batches(lambda: ops.two_shot_all_reduce_(large, "sum", name), BATCH, repeats))
    }
    figures["small_us"] = {}
    for nbytes in SMALL_BYTES:
        small = shared(nbytes)
        figures["small_us"][nbytes] = slowest(
            captured(lambda small=small: ops.one_shot_all_reduce(small, "sum", name), repeats)  # type: ignore[misc]
        )
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    return figures


# --- all ranks -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def job(kind: str, world: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What rank 0 has found, or why it has found nothing."""
    port = free_port()
    processes = []
    for rank in range(world):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
        }
        settings = ["--mib", str(arguments.mib), "--repeats", str(arguments.repeats)]
        processes.append(
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--job", kind, *settings],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if rank else None,
                text=True,
                start_new_session=True,
            )
        )
    until = time.monotonic() + LIMIT_S
    try:
        out, _ = processes[0].communicate(timeout=LIMIT_S)
        for process in processes[1:]:
            process.communicate(timeout=max(until - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        return {"why_not": f"not done within {LIMIT_S} s"}
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for line in out.splitlines():
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return found
    return {"why_not": f"rank 0 ended with {processes[0].returncode}"}


def table(figures: dict[int, dict[str, Any]], mib: int) -> list[str]:
    lines = [f"all-reduce of {mib} MiB of float32 each, on one GPU"]
    lines.append(
        f"{'ranks':>5} {'floor':>9} {'registered':>18} {'bfloat16':>18} {'staged':>18} {'torch, two-shot':>18} {'copy':>10}"
    )
    for world, both in figures.items():
        ours, peer = both["ours"], both.get("torch", {})
        if "why_not" in ours:
            lines.append(f"{world:>5} {ours['why_not']}")
            continue
        rate = ours["copy_bytes_per_s"]
        floor = 2 * world * (mib << 20) / rate * 1e6

        def cell(us: float | None, floor: float = floor) -> str:
            return "-" if us is None else f"{us:8.0f} us {100 * floor / us:4.0f} %"

        cells = [cell(ours["direct_us"]), cell(ours["direct_bf16_us"], floor / 2), cell(ours["staged_us"])]
        cells.append(cell(peer.get("direct_us")))
        lines.append(
            f"{world:>5} {floor:6.0f} us {' '.join(f'{text:>18}' for text in cells)} {rate / 1e12:5.2f} TB/s"
        )
    lines.append("")
    lines.append("all-reduce in a captured graph, us a call (torch: one-shot)")
    lines.append(f"{'bytes':>9} " + " ".join(f"{f'{world} ranks':>9} {'torch':>9}" for world in figures))
    for nbytes in SMALL_BYTES:
        cells = []
        for both in figures.values():
            for who in ("ours", "torch"):
                found = both.get(who, {}).get("small_us", {}).get(str(nbytes))
                cells.append("-" if found is None else f"{found:.1f}")
        lines.append(f"{nbytes:>9} " + " ".join(f"{text:>9}" for text in cells))
    for world, both in figures.items():
        for who, found in both.items():
            if "why_not" in found:
                lines.append(f"{who}, {world} ranks: {found['why_not']}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4,8", help="how many processes, several numbers by commas")
    parser.add_argument("--mib", type=int, default=256, help="how much each rank brings")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="where all figures are written")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--without-channels", action="store_true")
    parser.add_argument("--job", choices=["ours", "torch"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        of_job = our_rank if arguments.job == "ours" else torch_rank
        try:
            found = of_job(rank, world, arguments.mib, arguments.repeats)
        except Exception as error:
            print(MARK + json.dumps({"why_not": f"rank {rank}: {type(error).__name__}: {error}"}), flush=True)
            return 1
        print(MARK + json.dumps(found), flush=True)
        return 0
    figures: dict[int, dict[str, Any]] = {}
    for world in (int(number) for number in arguments.ranks.split(",")):
        figures[world] = {"ours": job("ours", world, arguments)}
        if not arguments.without_torch:
            figures[world]["torch"] = job("torch", world, arguments)
    print("\n".join(table(figures, arguments.mib)), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    code = 0 if all("why_not" not in both["ours"] for both in figures.values()) else 1
    if not arguments.without_channels:
        print(flush=True)
        channels = Path(__file__).with_name("gpu_channels.py")
        code |= subprocess.run([sys.executable, str(channels)], check=False, timeout=300).returncode
    return code


if __name__ == "__main__":
    sys.exit(main())
