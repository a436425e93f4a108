"""One rank of torch.distributed over Gloo, measured beside Ringfold by ``ringfold bench --against gloo``.

The orders come as lines over a Unix socket, the answers go back as lines of JSON; README.md lists them. While no order is
there the process sleeps in a read, so that whatever is measured meanwhile has the machine to itself.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

DTYPES: dict[str, torch.dtype] = {
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}
OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
#: How long the group may take for anything.
PATIENCE = datetime.timedelta(seconds=600)
PR_SET_PDEATHSIG = 1


class Unsupported(Exception):
    """Gloo has no such thing; the message says what."""


def resident_bytes(field: str) -> int:
    """What this process holds (``VmRSS``), or has held at most since the peak was reset (``VmHWM``)."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Has ``VmHWM`` begin anew. Where that is forbidden the peak is that of the whole life."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
            clear.write("5")
    except OSError:
        pass


@dataclass(frozen=True)
class Point:
    """What is measured. ``count`` is the elements of the whole: of the gathered output, or the input to be scattered."""

    collective: str
    dtype: str
    op: str
    count: int
    place: str
    check: bool


class Rank:
    """This process's part in the group, its buffers, and the call that is measured now."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.base = resident_bytes("VmRSS")
        self.send = torch.empty(0, dtype=torch.uint8)
        self.recv = torch.empty(0, dtype=torch.uint8)
        self.touched = [0, 0]
        self.call: Callable[[], Any] = dist.barrier

    def reserve(self, size: int) -> None:
        """Buffers that are large enough for all points. They are real memory only where they have been touched."""
        self.send = torch.empty(size, dtype=torch.uint8)
        self.recv = torch.empty(size, dtype=torch.uint8)

    def views(self, dtype: torch.dtype, sent: int, received: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The part of the buffers that a point uses, counted as touched."""
        width = dtype.itemsize
        self.touched = [max(self.touched[0], sent * width), max(self.touched[1], received * width)]
        return self.send[: sent * width].view(dtype), self.recv[: received * width].view(dtype)

    def prepare(self, point: Point) -> str | None:
        """Makes ready for a point, and says what its check found: ``ok``, what is wrong, or nothing if there was none."""
        if point.dtype not in DTYPES:
            raise Unsupported(f"{point.dtype} is not known to torch.distributed")
        dtype = DTYPES[point.dtype]
        whole, part, root = point.count, point.count // self.world, self.rank == 0
        sent, received = {
            "all_reduce": (whole, 0),
            "reduce": (whole, 0),
            "broadcast": (whole, 0),
            "all_gather": (part, whole),
            "reduce_scatter": (whole, part),
            "gather": (part, whole if root else 0),
            "scatter": (whole if root else 0, part),
            "all_to_all": (whole, whole),
            "transfer": (whole, whole),
            "barrier": (0, 0),
        }[point.collective]
        send, recv = self.views(dtype, sent, received)
        send.fill_(self.rank + 1)
        recv.zero_()
        self.call = self.bound(point, send, recv)
        found = None
        if point.check:
            self.call()
            found = self.verdict(point, send, recv)
        if point.place == "in":
            # What is summed up again and again shall stay what it is.
            send.zero_()
        return found

    def bound(self, point: Point, send: torch.Tensor, recv: torch.Tensor) -> Callable[[], Any]:
        """The call with its arguments; whatever can be made ready before is."""
        if point.collective == "barrier":
            return dist.barrier
        reduces = point.collective in ("all_reduce", "reduce", "reduce_scatter")
        if reduces and point.op not in OPS:
            raise Unsupported(f"Gloo has no {point.op}")
        op: Any = OPS.get(point.op)
        if point.collective in ("all_reduce", "reduce", "broadcast") and point.place == "out":
            raise Unsupported(f"Gloo's {point.collective} is in place")
        root = self.rank == 0
        match point.collective:
            case "all_reduce":
                return lambda: dist.all_reduce(send, op)
            case "reduce":
                return lambda: dist.reduce(send, 0, op)
            case "broadcast":
                return lambda: dist.broadcast(send, 0)
            case "all_gather":
                return lambda: dist.all_gather_into_tensor(recv, send)
            case "reduce_scatter":
                return lambda: dist.reduce_scatter_tensor(recv, send, op)
            case "gather":
                pieces = list(recv.chunk(self.world)) if root else None
                return lambda: dist.gather(send, pieces, 0)
            case "scatter":
                shares = list(send.chunk(self.world)) if root else None
                return lambda: dist.scatter(recv, shares, 0)
            case "all_to_all":
                return lambda: dist.all_to_all_single(recv, send)
            case "transfer":
                return self.there_and_back(send, recv)
        raise Unsupported(f"there is no {point.collective}")

    def there_and_back(self, send: torch.Tensor, recv: torch.Tensor) -> Callable[[], Any]:
        """From the first rank to the last and back."""
        last = self.world - 1

        def call() -> None:
            if self.rank == 0:
                dist.send(send, last)
                dist.recv(recv, last)
            elif self.rank == last:
                dist.recv(recv, 0)
                dist.send(send, 0)

        return call

    def verdict(self, point: Point, send: torch.Tensor, recv: torch.Tensor) -> str | None:
        """Looks at both ends of each part of the result. Every rank has filled its input with its rank and one."""
        ranks = [rank + 1 for rank in range(self.world)]
        product = 1
        for value in ranks:
            product *= value
        reduced = {"sum": sum(ranks), "prod": product, "max": self.world, "min": 1}.get(point.op)
        root, last = self.rank == 0, self.world - 1
        if point.collective in ("all_reduce", "reduce", "reduce_scatter") and reduced is None:
            return None
        results: dict[str, tuple[torch.Tensor, list[int | None]]] = {
            "all_reduce": (send, [reduced]),
            "reduce": (send if root else send[:0], [reduced]),
            "broadcast": (send, [1]),
            "all_gather": (recv, [*ranks]),
            "reduce_scatter": (recv, [reduced]),
            "gather": (recv if root else recv[:0], [*ranks]),
            "scatter": (recv, [1]),
            "all_to_all": (recv, [*ranks]),
            "transfer": (recv if self.rank in (0, last) else recv[:0], [self.world if root else 1]),
            "barrier": (recv[:0], [0]),
        }
        result, expected = results[point.collective]
        if len(result) == 0:
            return "ok"
        for number, (piece, wanted) in enumerate(zip(result.chunk(len(expected)), expected, strict=True)):
            for index in (0, len(piece) - 1):
                if piece[index].item() != wanted:
                    return f"element {index} of part {number} is {piece[index].item()}, not {wanted}"
        return "ok"

    def time(self, lead: int, calls: int) -> dict[str, int]:
        """Makes so many calls, after some that do not count, and tells what they cost."""
        call = self.call
        dist.barrier()
        for _ in range(lead):
            call()
        dist.barrier()
        before = resource.getrusage(resource.RUSAGE_SELF)
        cpu, begin = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(calls):
            call()
        elapsed, cpu = time.perf_counter_ns() - begin, time.process_time_ns() - cpu
        after = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "elapsed_ns": elapsed,
            "cpu_ns": cpu,
            "minor_faults": after.ru_minflt - before.ru_minflt,
            "major_faults": after.ru_majflt - before.ru_majflt,
            "beyond_bytes": max(0, resident_bytes("VmHWM") - self.base - sum(self.touched)),
        }


def answer(rank: Rank, words: list[str]) -> dict[str, Any]:
    """Carries out one order."""
    match words:
        case ["reserve", size]:
            rank.reserve(int(size))
            return {"reserved": True}
        case ["point", collective, dtype, op, count, place, check]:
            try:
                found = rank.prepare(Point(collective, dtype, op, int(count), place, check == "check"))
            except (Unsupported, NotImplementedError) as error:
                return {"unsupported": str(error)}
            except RuntimeError as error:
                # An operation that a backend lacks is told of in words only.
                if "nsupported" in str(error) or "not support" in str(error) or "nvalid" in str(error):
                    return {"unsupported": str(error).splitlines()[0]}
                raise
            reset_peak()
            return {"ready": True, "check": found}
        case ["time", lead, calls]:
            return dict(rank.time(int(lead), int(calls)))
    raise ValueError(f"no such order: {' '.join(words)}")


def orders(stream: Iterator[str]) -> Iterator[list[str]]:
    """Until there are no more, or the last one says so."""
    for line in stream:
        words = line.split()
        if words == ["end"]:
            return
        yield words


def main() -> int:
    """Joins the group, and does what it is told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True, help="where orders come from")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--core", type=int, help="the core to stay on")
    parser.add_argument("--store", required=True, help="a file that the ranks meet in")
    arguments = parser.parse_args()
    # No rank outlives whoever measures it, whatever it is doing.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    rank = Rank(arguments.rank, arguments.world)
    with socket.socket(socket.AF_UNIX) as line, line.makefile("rw", encoding="utf-8") as stream:
        line.connect(arguments.socket)

        def tell(what: dict[str, Any]) -> None:
            stream.write(json.dumps(what) + "\n")
            stream.flush()

        tell({"rank": arguments.rank, "about": f"Gloo of torch {torch.__version__}"})
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{arguments.store}",
                rank=arguments.rank,
                world_size=arguments.world,
                timeout=PATIENCE,
            )
            tell({"joined": True})
            for words in orders(stream):
                tell(answer(rank, words))
        except Exception as error:  # noqa: BLE001 - whoever measures tells the user
            tell({"error": f"{type(error).__name__}: {error}"})
            return 1
    # Goodbyes of ranks that end in any order are of no use to anybody.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
