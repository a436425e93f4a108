"""One rank of torch.distributed over Gloo, measured by ``ringfold bench --against gloo``.

Commands arrive as lines over a Unix socket, answers are lines of JSON; bench/README.md lists them. Between commands the process
sleeps in a read, so that it does not disturb the system that is being measured.
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
#: The timeout of the group.
TIMEOUT = datetime.timedelta(seconds=600)
PR_SET_PDEATHSIG = 1


class Unsupported(Exception):
    """Gloo does not support this operation; the message names it."""


def resident_bytes(field: str) -> int:
    """The memory of this process (``VmRSS``), or its peak since the last reset (``VmHWM``)."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def reset_peak() -> None:
    """Resets ``VmHWM``. Without permission the peak is that of the whole process."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
            clear.write("5")
    except OSError:
        pass


@dataclass(frozen=True)
class Point:
    """One measurement. ``count`` is the number of elements of the whole tensor."""

    collective: str
    dtype: str
    op: str
    count: int
    place: str
    check: bool


class Rank:
    """This process's rank in the group, its buffers, and the call that is being measured."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.base = resident_bytes("VmRSS")
        self.send = torch.empty(0, dtype=torch.uint8)
        self.recv = torch.empty(0, dtype=torch.uint8)
        self.touched = [0, 0]
        self.call: Callable[[], Any] = dist.barrier

    def reserve(self, size: int) -> None:
        """Buffers that are large enough for all points. Only the touched part takes real memory."""
        self.send = torch.empty(size, dtype=torch.uint8)
        self.recv = torch.empty(size, dtype=torch.uint8)

    def views(self, dtype: torch.dtype, sent: int, received: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The part of the buffers that a point uses, counted as touched."""
        width = dtype.itemsize
        self.touched = [max(self.touched[0], sent * width), max(self.touched[1], received * width)]
        return self.send[: sent * width].view(dtype), self.recv[: received * width].view(dtype)

    def prepare(self, point: Point) -> str | None:
        """Prepares a point, and returns the result of its check: ``ok``, the error, or None without a check."""
        if point.dtype not in DTYPES:
            raise Unsupported(f"torch.distributed does not support {point.dtype}")
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
        self.call = self.bind(point, send, recv)
        found = None
        if point.check:
            self.call()
            found = self.check(point, send, recv)
        if point.place == "in":
            # Repeated sums must not change the values.
            send.zero_()
        return found

    def bind(self, point: Point, send: torch.Tensor, recv: torch.Tensor) -> Callable[[], Any]:
        """The call with its arguments, prepared as far as possible."""
        if point.collective == "barrier":
            return dist.barrier
        reduces = point.collective in ("all_reduce", "reduce", "reduce_scatter")
        if reduces and point.op not in OPS:
            raise Unsupported(f"Gloo does not support {point.op}")
        op: Any = OPS.get(point.op)
        if point.collective in ("all_reduce", "reduce", "broadcast") and point.place == "out":
            raise Unsupported(f"Gloo's {point.collective} is in place only")
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
                return self.round_trip(send, recv)
        raise Unsupported(f"unknown collective {point.collective}")

    def round_trip(self, send: torch.Tensor, recv: torch.Tensor) -> Callable[[], Any]:
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

    def check(self, point: Point, send: torch.Tensor, recv: torch.Tensor) -> str | None:
        """Checks both ends of each part of the result. Every rank has filled its input with its rank plus one."""
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
        """Makes this number of calls, after some that do not count, and returns their cost."""
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


def execute(rank: Rank, words: list[str]) -> dict[str, Any]:
    """Executes one command."""
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
                # torch reports a missing operation only by the text of the error.
                if "nsupported" in str(error) or "not support" in str(error) or "nvalid" in str(error):
                    return {"unsupported": str(error).splitlines()[0]}
                raise
            reset_peak()
            return {"ready": True, "check": found}
        case ["time", lead, calls]:
            return dict(rank.time(int(lead), int(calls)))
    raise ValueError(f"unknown command: {' '.join(words)}")


def read_commands(stream: Iterator[str]) -> Iterator[list[str]]:
    """Reads commands until the socket ends or ``end`` arrives."""
    for line in stream:
        words = line.split()
        if words == ["end"]:
            return
        yield words


def main() -> int:
    """Joins the group and executes commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True, help="the Unix socket to read commands from")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--core", type=int, help="the core to bind to")
    parser.add_argument("--store", required=True, help="a file for the rendezvous of the ranks")
    arguments = parser.parse_args()
    # A rank never outlives the process that measures it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    rank = Rank(arguments.rank, arguments.world)
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rw", encoding="utf-8") as stream:
        connection.connect(arguments.socket)

        def reply(message: dict[str, Any]) -> None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        reply({"rank": arguments.rank, "about": f"Gloo of torch {torch.__version__}"})
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{arguments.store}",
                rank=arguments.rank,
                world_size=arguments.world,
                timeout=TIMEOUT,
            )
            reply({"joined": True})
            for words in read_commands(stream):
                reply(execute(rank, words))
        except Exception as error:  # noqa: BLE001 - the measuring process reports it
            reply({"error": f"{type(error).__name__}: {error}"})
            return 1
    # Skip the shutdown of the group: the ranks end in any order.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
