"""GPU figures: operations among processes on one GPU, interleaved with torch's symmetric memory, and channels
(``gpu_channels.py``), training, and several hosts. By device events, medians. Run it under MPS: ``scripts/gpu-suite figures`` does, or start the service yourself.

    python bench/gpu.py [--ranks 2,4,8] [--mib 256] [--repeats 15] [--json FILE] [--without-torch] [--without-channels]
    python bench/gpu.py --quick       the two most important figures, within a minute

Each figure is printed when it is measured, and a table at the end. Ranks that do not end print their stacks.
The floor of an all-reduce of n ranks with S bytes each on one GPU is 2·n·S bytes of memory traffic, at the rate of a copy of as many
bytes in the same run. It needs the packages of this project on the path, and torch.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The time limit of one job; about 10 s are expected. Shortly before it the ranks print their stacks. Kernels time out long before.
LIMIT_S, QUICK_LIMIT_S, STACKS_S, PATIENCE_S = 45.0, 30.0, 3.0, 15.0
# The same for channels, whose ranks time out earlier.
CHANNELS_LIMIT_S = 180.0
# Calls between two events, and in a captured graph.
BATCH, CAPTURED = 5, 20
QUICK_REPEATS = 5
# How often Ringfold and torch alternate at each size, and how often each is measured per turn.
TURNS, TURN_REPEATS = 7, 5
SMALL_BYTES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
# Sizes in turns with torch, all in graphs.
TURN_BYTES = (*SMALL_BYTES, 2 << 20, 4 << 20, 16 << 20, 64 << 20)
QUICK_BYTES = (1 << 10,)
# The blocks of torch's kernels, and the size from which on they are that many.
TORCH_BLOCKS_MAX, TORCH_LARGE_BYTES = 24, 4 << 20
EAGER_BYTES = 1 << 10
MARK = "FIGURE "
# How much of a failed rank's output is shown.
SHOWN_CHARS = 6000

Figures = dict[str, float]
Tell = Callable[[str, float], None]


# --- one rank --------------------------------------------------------------------------------------------------------


def batches(act: Callable[[], object], calls: int, repeats: int) -> float:
    """The median time of a call, in µs. The call before the first event synchronizes the ranks."""
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


def graph_of(act: Callable[[], object]) -> Callable[[], object]:
    """Returns a function that replays this number of calls."""
    import torch

    act()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CAPTURED):
            act()
    return graph.replay


def captured(act: Callable[[], object], repeats: int) -> float:
    """The same for calls in a graph."""
    return batches(graph_of(act), 3, repeats) / CAPTURED


def copy_rate(nbytes: int, repeats: int) -> float:
    """Bytes per second that a copy reads and writes."""
    import torch

    source = torch.zeros(nbytes // 4, device="cuda")
    target = torch.empty_like(source)
    spent = batches(lambda: target.copy_(source), BATCH, repeats)
    return 2 * nbytes / spent * 1e6


def open_comm() -> Any:
    """Ringfold's ranks, with collectives on the device."""
    import torch
    import torchcomms

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    comm = torchcomms.new_comm(
        "nccl", device, "bench", timeout=PATIENCE_S, abort_process_on_timeout_or_error=False
    )
    engine: Any = comm.get_backend_impl()
    if engine._device is None:
        raise RuntimeError("collectives do not run on the device; the log says why")
    return comm


def slowest(comm: Any, us: float) -> float:
    """The time of the slowest rank."""
    import torch

    everyone = torch.empty(comm.get_size(), dtype=torch.float64)
    comm.all_gather_single(everyone, torch.tensor([us], dtype=torch.float64), False)
    return float(everyone.max())


def reduced(comm: Any, tensor: Any) -> Callable[[], object]:
    """Ringfold's all-reduce. Zeros stay zeros after any number of calls."""
    from torchcomms import ReduceOp

    return lambda: comm.all_reduce(tensor, ReduceOp.SUM, False)


def reduced_later(comm: Any, tensor: Any) -> Callable[[], object]:
    """The same, asynchronous, and waited for."""
    from torchcomms import ReduceOp

    return lambda: comm.all_reduce(tensor, ReduceOp.SUM, True).wait()


def our_rank(rank: int, world: int, arguments: argparse.Namespace, tell: Tell) -> None:
    import torch

    repeats, began = arguments.repeats, time.monotonic()
    comm = open_comm()
    engine = comm.get_backend_impl()
    tell("open_s", time.monotonic() - began)
    large = torch.zeros(arguments.mib * (1 << 20) // 4, device="cuda")
    if not arguments.quick:
        # Not registered by hand: only the first call is through staging areas.
        tell("plain_us", slowest(comm, batches(reduced(comm, large), BATCH, repeats)))
    engine.register_tensor(large)
    tell("direct_us", slowest(comm, batches(reduced(comm, large), BATCH, repeats)))
    tell("direct_graph_us", slowest(comm, captured(reduced(comm, large), repeats)))
    if not arguments.quick:
        half = large.to(torch.bfloat16)
        engine.register_tensor(half)
        tell("direct_bf16_us", slowest(comm, batches(reduced(comm, half), BATCH, repeats)))
        del half
    for nbytes in QUICK_BYTES if arguments.quick else SMALL_BYTES:
        small = torch.zeros(nbytes // 4, device="cuda")
        tell(f"small_us {nbytes}", slowest(comm, captured(reduced(comm, small), repeats)))
    small = torch.zeros(EAGER_BYTES // 4, device="cuda")
    tell("eager_us", slowest(comm, batches(reduced(comm, small), CAPTURED, repeats)))
    tell("async_us", slowest(comm, batches(reduced_later(comm, small), CAPTURED, repeats)))
    torch.cuda.synchronize()
    comm.barrier(False)
    if rank == 0:
        tell("copy_bytes_per_s", copy_rate(world * arguments.mib << 20, repeats))
    comm.barrier(False)
    comm.finalize()


def turns_rank(rank: int, world: int, arguments: argparse.Namespace, tell: Tell) -> None:
    """Ringfold and torch's symmetric memory, alternately in one process."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

    comm = open_comm()
    dist.init_process_group("gloo", f"file://{arguments.folder}/meeting", rank=rank, world_size=world)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    ops = torch.ops.symm_mem

    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count

    def shared(nbytes: int) -> torch.Tensor:
        tensor = symmetric.empty(nbytes // 4, dtype=torch.float32, device=torch.device("cuda", 0))
        symmetric.rendezvous(tensor, name)
        tensor.zero_()
        return tensor

    def compare(what: str, calls: int, part: int, **acts: Callable[[], object]) -> None:
        spent: dict[str, list[float]] = {who: [] for who in acts}
        for _ in range(TURNS):
            for who, act in acts.items():
                spent[who].append(slowest(comm, batches(act, calls, TURN_REPEATS) / part))
        for who, each in spent.items():
            tell(f"{who} {what}", statistics.median(each))

    for nbytes in (*TURN_BYTES, arguments.mib << 20):
        mine, theirs = torch.zeros(nbytes // 4, device="cuda"), shared(nbytes)
        two_shot = functools.partial(ops.two_shot_all_reduce_, theirs, "sum", name)
        acts = {"ours": graph_of(reduced(comm, mine))}
        # Torch's blocks must run at the same time, and with many ranks on one device they do not: its kernels never end.
        if nbytes < TORCH_LARGE_BYTES or world * TORCH_BLOCKS_MAX <= multiprocessors:
            acts["two-shot"] = graph_of(two_shot)
        if nbytes in SMALL_BYTES:
            acts["one-shot"] = graph_of(functools.partial(ops.one_shot_all_reduce, theirs, "sum", name))
        compare(str(nbytes), 3, CAPTURED, **acts)
        del acts
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    comm.finalize()


def be_rank(arguments: argparse.Namespace) -> int:
    """A process of a job. Rank 0 prints each figure as soon as it has it."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(arguments.limit - STACKS_S, 1.0), exit=True)

    def tell(name: str, value: float) -> None:
        if rank == 0:
            print(MARK + json.dumps([name, value]), flush=True)

    from gpu_ddp import ddp_rank
    from gpu_hosts import hosts_rank
    from gpu_operations import operations_rank

    ours = {"ours": our_rank, "turns": turns_rank}
    others = {"operations": operations_rank, "ddp": ddp_rank, "hosts": hosts_rank}
    (ours | others)[arguments.job](rank, world, arguments, tell)
    faulthandler.cancel_dump_traceback_later()
    return 0


# --- all ranks -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Job:
    """The ranks of one measurement."""

    def __init__(self, kind: str, world: int, arguments: argparse.Namespace) -> None:
        self.kind, self.world, self.limit = kind, world, arguments.limit
        self.figures: Figures = {}
        self._began = time.monotonic()
        self._folder = tempfile.TemporaryDirectory(prefix="gpu-bench")
        settings = ["--job", kind, "--mib", str(arguments.mib), "--repeats", str(arguments.repeats)]
        settings += ["--limit", str(arguments.limit), *(["--quick"] if arguments.quick else [])]
        settings += ["--folder", self._folder.name]
        port = free_port()
        self._ranks = [self._start(rank, port, settings) for rank in range(world)]

    def run(self) -> str:
        """Why figures are missing; None if all are there."""
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        try:
            why = self._wait()
        finally:
            for process in self._ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        reader.join(5.0)
        if why:
            self._show(why)
        self._folder.cleanup()
        return why

    def _start(self, rank: int, port: int, settings: list[str]) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            **{"RANK": str(rank), "WORLD_SIZE": str(self.world), "LOCAL_RANK": str(rank)},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
            "OMP_NUM_THREADS": "1",
        }
        with open(self._log(rank), "w") as log:
            return subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), *settings],
                env=environment,
                stdout=subprocess.PIPE if rank == 0 else log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _wait(self) -> str:
        until = self._began + self.limit
        while time.monotonic() < until:
            codes = [process.poll() for process in self._ranks]
            if all(code == 0 for code in codes):
                return ""
            bad = [f"rank {rank} ended with {code}" for rank, code in enumerate(codes) if code]
            if bad:
                # The other ranks have a moment to report their errors.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    for process in self._ranks:
                        process.wait(min(2 * STACKS_S, max(until - time.monotonic(), 0.1)))
                return bad[0]
            time.sleep(0.02)
        return f"not done within {self.limit:.0f} s"

    def _read(self) -> None:
        out = self._ranks[0].stdout
        assert out is not None
        for line in out:
            if not line.startswith(MARK):
                print(line, end="", flush=True)
                continue
            name, value = json.loads(line.removeprefix(MARK))
            self.figures[name] = value
            spent = time.monotonic() - self._began
            print(f"{spent:6.1f} s  {self.kind}, {self.world} ranks: {name} {value:.6g}", flush=True)

    def _show(self, why: str) -> None:
        print(f"{self.kind}, {self.world} ranks: {why}", flush=True)
        for rank in range(self.world):
            said = Path(self._log(rank)).read_text(errors="replace").strip()
            if said:
                # Stacks begin with the innermost frame.
                half = SHOWN_CHARS // 2
                cut = said if len(said) <= SHOWN_CHARS else f"{said[:half]}\n...\n{said[-half:]}"
                print(f"--- output of rank {rank}:\n{cut}", flush=True)

    def _log(self, rank: int) -> str:
        return os.path.join(self._folder.name, f"{rank}.log")


def table(found: dict[int, dict[str, Figures]], mib: int) -> list[str]:
    lines = [f"all-reduce of {mib} MiB of float32 each, on one GPU"]
    lines.append(
        f"{'ranks':>5} {'floor':>9} {'registered':>18} {'in a graph':>18} {'bfloat16':>18} {'plain':>18} {'copy':>10}"
    )
    for world, both in found.items():
        ours = both.get("ours", {})
        rate = ours.get("copy_bytes_per_s")
        floor = None if rate is None else 2 * world * (mib << 20) / rate * 1e6

        def cell(us: float | None, part: float = 1.0, floor: float | None = floor) -> str:
            if us is None:
                return "-"
            return f"{us:8.0f} us" + ("" if floor is None else f" {100 * part * floor / us:4.0f} %")

        cells = [cell(ours.get("direct_us")), cell(ours.get("direct_graph_us"))]
        cells.append(cell(ours.get("direct_bf16_us"), 0.5))
        cells.append(cell(ours.get("plain_us")))
        ends = ("-", "-") if rate is None or floor is None else (f"{floor:.0f} us", f"{rate / 1e12:.2f} TB/s")
        lines.append(f"{world:>5} {ends[0]:>9} {' '.join(f'{text:>18}' for text in cells)} {ends[1]:>10}")
    lines += ["", "all-reduce in a captured graph, us a call"]
    lines.append(f"{'bytes':>9} " + " ".join(f"{f'{world} ranks':>9}" for world in found))
    for nbytes in SMALL_BYTES:
        row = [both.get("ours", {}).get(f"small_us {nbytes}") for both in found.values()]
        if any(us is not None for us in row):
            cells = ["-" if us is None else f"{us:.1f}" for us in row]
            lines.append(f"{nbytes:>9} " + " ".join(f"{text:>9}" for text in cells))
    for world, both in found.items():
        if us := both.get("ours", {}).get("eager_us"):
            later = both["ours"].get("async_us", 0.0)
            lines.append(
                f"without a graph, {world} ranks, {EAGER_BYTES} bytes: {us:.1f} us a call, asynchronous with wait {later:.1f}"
            )
    from gpu_ddp import ddp_table
    from gpu_hosts import hosts_table
    from gpu_operations import operations_table

    return lines + turns_table(found, mib) + operations_table(found) + ddp_table(found) + hosts_table(found)


def turns_table(found: dict[int, dict[str, Figures]], mib: int) -> list[str]:
    lines = []
    for nbytes in (*TURN_BYTES, mib << 20):
        row = []
        for both in found.values():
            turns = both.get("turns", {})
            ours = turns.get(f"ours {nbytes}")
            peers = [us for who in ("one-shot", "two-shot") if (us := turns.get(f"{who} {nbytes}"))]
            peer = min(peers, default=None)
            row.append("-" if not ours or not peer else f"{ours:.1f} {peer:8.1f} {peer / ours:6.2f}")
        if any(cell != "-" for cell in row):
            lines.append(f"{nbytes:>9} " + " ".join(f"{cell:>26}" for cell in row))
    if not lines:
        return []
    head = f"{'bytes':>9} " + " ".join(f"{f'{world} ranks: us, torch, ratio':>26}" for world in found)
    what = f"in a graph, in turns with the better of torch's one-shot and two-shot, medians of {TURNS}"
    return ["", what, head, *lines]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4,8", help="numbers of processes, separated by commas")
    parser.add_argument("--mib", type=int, default=256, help="MiB per rank")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--limit", type=float, help="time limit in seconds for each number of ranks")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--quick", action="store_true", help="only 1 KiB in a graph, and registered memory")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--without-channels", action="store_true")
    parser.add_argument("--only", help="only these parts: ours, channels, turns, operations, ddp, hosts")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else 15)
    arguments.limit = arguments.limit or (QUICK_LIMIT_S if arguments.quick else LIMIT_S)
    if arguments.job is not None:
        return be_rank(arguments)
    kinds = ["ours"]
    if not arguments.quick:
        kinds += [] if arguments.without_channels else ["channels"]
        kinds += [] if arguments.without_torch else ["turns", "operations", "ddp", "hosts"]
    if arguments.only:
        kinds = arguments.only.split(",")
    found: dict[int, dict[str, Figures]] = {}
    failures: list[str] = []
    worlds = [int(number) for number in arguments.ranks.split(",")]
    code = 0
    # Ringfold first: a time limit then cuts off the others, and a rank that must be killed may take MPS with it.
    for kind in kinds:
        if kind == "channels":
            code = channels()
            continue
        for world in worlds:
            job = Job(kind, world, arguments)
            why = job.run()
            found.setdefault(world, {})[kind] = job.figures
            if why:
                failures.append(f"{kind}, {world} ranks: {why}")
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(["", *table(found, arguments.mib), *failures]), flush=True)
    return 1 if any(failure.startswith("ours") for failure in failures) else code


def channels() -> int:
    """The figures of channels. If they are missing, the other figures are still shown."""
    file = Path(__file__).with_name("gpu_channels.py")
    try:
        return subprocess.run([sys.executable, str(file)], check=False, timeout=CHANNELS_LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        print(f"channels: not done within {CHANNELS_LIMIT_S:.0f} s", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
