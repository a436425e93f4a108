"""GPU figures of all operations, in turns with the same data movement by hand over torch's symmetric memory.

``gpu.py`` runs it as one of its jobs. By hand means: the data is in symmetric memory already, a barrier, the copies or the sum, and a
barrier. The floor is the traffic of the device's memory at the rate of a copy in the same run: what is read and written by all ranks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

Act = Callable[[], object]

SIZES = (64 << 10, 1 << 20, 64 << 20, 256 << 20)
# Up to this size figures are those of a captured graph as well.
GRAPH_BYTES_MAX = 64 << 10
TURNS, TURN_REPEATS, CALLS = 5, 3, 5


def operations(comm: Any, nbytes: int) -> dict[str, Act]:
    """Ringfold's operations on plain tensors of so many bytes per rank."""
    import torch
    from torchcomms import ReduceOp

    rank, world = comm.get_rank(), comm.get_size()
    count = nbytes // 4
    one, other = torch.zeros(count, device="cuda"), torch.zeros(count, device="cuda")
    part = torch.zeros(count // world, device="cuda")

    def transfer() -> None:
        if rank == 0:
            comm.send(one, 1, False)
        elif rank == 1:
            comm.recv(other, 0, False)

    return {
        "reduce_scatter": lambda: comm.reduce_scatter_single(part, one, ReduceOp.SUM, False),
        "all_gather": lambda: comm.all_gather_single(one, part, False),
        "all_to_all": lambda: comm.all_to_all_single(other, one, False),
        "broadcast": lambda: comm.broadcast(one, 0, False),
        "send/recv": transfer,
    }


def by_hand(handle: Any, tensor: Any, world: int, rank: int) -> dict[str, Act]:
    """The same by copies and sums of symmetric memory."""
    import torch

    count = tensor.numel()
    part = count // world
    peers = [handle.get_buffer(peer, (count,), torch.float32) for peer in range(world)]
    out = torch.zeros(count, device="cuda")
    mine = slice(rank * part, (rank + 1) * part)

    def between(act: Act) -> Act:
        def run() -> None:
            handle.barrier(channel=0)
            act()
            handle.barrier(channel=0)

        return run

    def reduce_scatter() -> None:
        torch.add(peers[0][mine], peers[1][mine], out=out[:part])
        for peer in peers[2:]:
            out[:part].add_(peer[mine])

    def all_gather() -> None:
        for peer in range(world):
            out[peer * part : (peer + 1) * part].copy_(peers[peer][:part])

    def all_to_all() -> None:
        for peer in range(world):
            out[peer * part : (peer + 1) * part].copy_(peers[peer][mine])

    def broadcast() -> None:
        if rank != 0:
            out.copy_(peers[0])

    def transfer() -> None:
        if rank == 1:
            out.copy_(peers[0])

    acts = (reduce_scatter, all_gather, all_to_all, broadcast, transfer)
    names = ("reduce_scatter", "all_gather", "all_to_all", "broadcast", "send/recv")
    return {name: between(act) for name, act in zip(names, acts, strict=True)}


def traffic(name: str, world: int) -> float:
    """Bytes that an operation must read and write on one device, over the bytes per rank."""
    moved = {
        # Each rank reads its part of all, and writes it.
        "reduce_scatter": world + 1,
        "all_gather": 1 + world,
        "all_to_all": 2 * world,
        # The root's data is read by each of the others; the cache may help.
        "broadcast": 2 * (world - 1),
        "send/recv": 2,
    }
    return float(moved[name])


def operations_rank(
    rank: int, world: int, arguments: argparse.Namespace, tell: Callable[[str, float], None]
) -> None:
    """One rank of the job."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric
    from gpu import batches, captured, copy_rate, open_comm, slowest

    comm = open_comm()
    dist.init_process_group("gloo", f"file://{arguments.folder}/meeting", rank=rank, world_size=world)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    for nbytes in SIZES:
        shared = symmetric.empty(nbytes // 4, dtype=torch.float32, device=torch.device("cuda", 0))
        handle = symmetric.rendezvous(shared, name)
        shared.zero_()
        ours, hands = operations(comm, nbytes), by_hand(handle, shared, world, rank)
        for operation, act in ours.items():
            spent: dict[str, list[float]] = {"ours": [], "hand": []}
            for _ in range(TURNS):
                for who, one in (("ours", act), ("hand", hands[operation])):
                    spent[who].append(slowest(comm, batches(one, CALLS, TURN_REPEATS)))
            for who, each in spent.items():
                tell(f"{who} {operation} {nbytes}", statistics.median(each))
            if nbytes <= GRAPH_BYTES_MAX:
                tell(f"graph {operation} {nbytes}", slowest(comm, captured(act, TURN_REPEATS)))
        # A figure with nothing else on the device.
        torch.cuda.synchronize()
        dist.barrier()
        if rank == 0:
            tell(f"copy {nbytes}", copy_rate(max(nbytes, 64 << 20), TURN_REPEATS))
        dist.barrier()
    dist.destroy_process_group()
    comm.finalize()


def operations_table(found: dict[int, dict[str, dict[str, float]]]) -> list[str]:
    """The figures of all numbers of ranks, in lines."""
    lines = []
    for world, kinds in found.items():
        figures = kinds.get("operations", {})
        for key, us in figures.items():
            who, _, what = key.partition(" ")
            if who != "ours":
                continue
            operation, nbytes = what.rsplit(" ", 1)
            hand, graph = figures.get(f"hand {what}"), figures.get(f"graph {what}")
            rate = figures.get(f"copy {nbytes}")
            floor = None if rate is None else traffic(operation, world) * int(nbytes) / rate * 1e6
            cells = [f"{world:>5} {operation:>14} {int(nbytes):>10} {us:8.1f}"]
            cells.append("       -" if hand is None else f"{hand:8.1f}")
            cells.append("     -" if hand is None else f"{us / hand:6.2f}")
            cells.append("       -" if graph is None else f"{graph:8.1f}")
            cells.append("     -" if floor is None or int(nbytes) < 1 << 20 else f"{100 * floor / us:5.0f}%")
            lines.append(" ".join(cells))
    if not lines:
        return []
    what = f"all operations in turns with symmetric memory by hand, us a call, medians of {TURNS}"
    head = f"{'ranks':>5} {'operation':>14} {'bytes':>10} {'ours':>8} {'by hand':>8} {'ratio':>6} {'in graph':>8} {'floor':>6}"
    return ["", what, head, *lines]
