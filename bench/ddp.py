"""torch.distributed over Ringfold and over Gloo, measured alternately in the same processes.

    python bench/ddp.py                      two ranks, a table at the end
    python bench/ddp.py --world 4 --rounds 9 --only small

Each round measures everything once over Gloo and once over Ringfold, so that other load on the machine affects both. The
table shows medians over the rounds, of the slower rank.
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

PARTS = ("small", "large", "ddp")
PATIENCE_SECONDS = 1800.0


def main() -> int:
    arguments = _parsed()
    if arguments.rank is not None:
        Rank(arguments).measure()
        return 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--rank", str(rank)], env=env)
        for rank in range(arguments.world)
    ]
    try:
        return max(abs(rank.wait(PATIENCE_SECONDS)) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()


def _parsed() -> argparse.Namespace:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--world", type=int, default=2, help="number of ranks (2)")
    parser.add_argument(
        "--rounds", type=int, default=7, help="rounds that count (7), after one warm-up round"
    )
    parser.add_argument("--only", choices=PARTS, action="append", help="a part: small, large or ddp (all)")
    parser.add_argument(
        "--width", type=int, default=2048, help="of the model's six layers (2048: 25 M parameters)"
    )
    parser.add_argument("--batch", type=int, default=8, help="rows of data per step (8)")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


class Rank:
    """One of the processes: a group of each backend, and the measurements."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import ringfold.torch  # noqa: F401  (registers the backend)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.arguments = arguments
        self.parts = arguments.only or list(PARTS)
        dist.init_process_group("gloo", rank=arguments.rank, world_size=arguments.world)
        self.groups: dict[str, Any] = {
            "gloo": dist.group.WORLD,
            "ringfold": dist.new_group(backend="ringfold"),
        }
        self.times: dict[str, dict[str, list[float]]] = {}

    def measure(self) -> None:
        """All rounds, and the table on rank 0."""
        import torch.distributed as dist

        calls = self._calls()
        for turn in range(self.arguments.rounds + 1):
            for name, (times, by_backend) in calls.items():
                for backend, call in by_backend.items():
                    taken = self._timed(call, times)
                    if turn > 0:
                        self.times.setdefault(name, {}).setdefault(backend, []).append(taken)
        everyones: list[Any] = [None] * self.arguments.world
        dist.all_gather_object(everyones, self.times)
        if self.arguments.rank == 0:
            self._print(everyones)
        dist.destroy_process_group()

    def _calls(self) -> dict[str, tuple[int, dict[str, Callable[[], Any]]]]:
        """The measurements: name, calls per round, and the call for each backend."""
        import torch
        import torch.distributed as dist

        calls: dict[str, tuple[int, dict[str, Callable[[], Any]]]] = {}

        def add(name: str, times: int, call: Callable[[Any], Callable[[], Any]]) -> None:
            calls[name] = (times, {backend: call(group) for backend, group in self.groups.items()})

        if "small" in self.parts:
            add("barrier", 200, lambda group: lambda: dist.barrier(group=group))
            four = torch.ones(1)
            add("all_reduce, 4 B", 300, lambda group: lambda: dist.all_reduce(four, group=group))
            later = torch.ones(1)

            def in_the_background(group: Any) -> Callable[[], Any]:
                return lambda: dist.all_reduce(later, group=group, async_op=True).wait()  # type: ignore[union-attr]

            add("all_reduce, 4 B, async", 300, in_the_background)
            calls["native call, 4 B"] = (300, {"ringfold": self._native(torch.zeros(1))})
        if "large" in self.parts:
            for name, count, times in (("1 MiB", 1 << 18, 50), ("25 MiB", 25 << 18, 4)):
                data = torch.zeros(count)
                add(
                    f"all_reduce, {name}",
                    times,
                    lambda group, d=data: lambda: dist.all_reduce(d, group=group),
                )
        if "ddp" in self.parts:
            steps = {backend: self._model(group) for backend, group in self.groups.items()}
            calls["DDP step"] = (2, {backend: step for backend, (step, _) in steps.items()})
            calls["the same without sync"] = (2, {backend: alone for backend, (_, alone) in steps.items()})
        return calls

    def _native(self, data: Any) -> Callable[[], Any]:
        """The time of an all-reduce of the native module, without torch.distributed."""
        import torch

        comm = self.groups["ringfold"]._get_backend(torch.device("cpu")).get_comm()
        group = comm.get_backend_impl()._group
        from torchcomms._dtypes import REDUCED
        from torchcomms._reduce_op import RedOpType

        dtype, reduce = REDUCED[torch.float32, RedOpType.SUM]
        # The native module takes addresses; the tensor has to live as long as the calls.
        self.kept = data
        span = [(data.data_ptr(), data.nbytes)]
        return lambda: group.run("all_reduce", dtype, reduce, -1, None, None, span, span, None)

    def _model(self, group: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """A step of training, and one without any communication."""
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        width = self.arguments.width
        layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
        model = DistributedDataParallel(
            nn.Sequential(*layers), process_group=group, gradient_as_bucket_view=True
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        data = torch.randn(self.arguments.batch, width)

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            model(data).square().mean().backward()
            optimizer.step()

        def alone() -> None:
            with model.no_sync():
                step()

        return step, alone

    def _timed(self, call: Callable[[], Any], times: int) -> float:
        """Microseconds per call, over this number of calls, after some warm-up calls."""
        import torch.distributed as dist

        for _ in range(max(times // 10, 1)):
            call()
        dist.barrier(group=self.groups["ringfold"])
        began = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - began) / times * 1e6

    def _print(self, everyones: list[dict[str, dict[str, list[float]]]]) -> None:
        def median(name: str, backend: str) -> float:
            return max(statistics.median(times[name][backend]) for times in everyones)

        rows: list[tuple[str, float | None, float]] = []
        for name, by_backend in self.times.items():
            gloo = median(name, "gloo") if "gloo" in by_backend else None
            rows.append((name, gloo, median(name, "ringfold")))
        if "ddp" in self.parts:
            whole, alone = rows[-2], rows[-1]
            assert whole[1] is not None and alone[1] is not None
            rows.append(("DDP's all-reduce (the difference)", whole[1] - alone[1], whole[2] - alone[2]))
        if "small" in self.parts:
            by_name = {name: ours for name, _, ours in rows}
            rows.append(
                (
                    "dist.all_reduce over the native call",
                    None,
                    by_name["all_reduce, 4 B"] - by_name["native call, 4 B"],
                )
            )
        print(f"{'µs, medians':40} {'gloo':>12} {'ringfold':>12} {'speedup':>13}")
        for name, gloo, ours in rows:
            ratio = "" if gloo is None else f"{gloo / ours:.2f}"
            print(f"{name:40} {'' if gloo is None else f'{gloo:.1f}':>12} {ours:>12.1f} {ratio:>13}")


if __name__ == "__main__":
    sys.exit(main())
