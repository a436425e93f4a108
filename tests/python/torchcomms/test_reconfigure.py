"""Communicators that change their members: after a death, for a newcomer, in halves."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchcomms
from ranks import Ranks, await_reached, reach
from torchcomms import ReduceOp, TorchComm

CPU = torch.device("cpu")
RANK = "RANK"


def waiting(name: str = "c", timeout: float = 20.0) -> TorchComm:
    """A communicator without ranks yet."""
    return torchcomms.new_comm("ringfold", CPU, name, enable_reconfigure=True, timeout=timeout)


def me() -> int:
    return int(os.environ[RANK])


class HandleBoard:
    """Exchanges handles between ranks through a file store."""

    def __init__(self, path: str) -> None:
        self._store = dist.FileStore(path, -1)
        self._store.set_timeout(timedelta(seconds=30))

    def tell(self, comm: TorchComm) -> None:
        self._store.set(f"handle{me()}", comm.get_init_handle())

    def handles(self, *numbers: int) -> list[str]:
        return [self._store.get(f"handle{number}").decode() for number in numbers]

    def meet(self, what: str, count: int) -> None:
        """Waits until so many have come."""
        self._store.add(what, 1)
        until = time.monotonic() + 30
        while self._store.add(what, 0) < count:
            assert time.monotonic() < until, f"not all came to {what}"
            time.sleep(0.005)


def total(comm: TorchComm) -> tuple[int, int, float]:
    """Rank, size, and the sum of who the members were at the start."""
    tensor = torch.tensor([10.0 ** me()])
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    return comm.get_rank(), comm.get_size(), float(tensor.item())


# --- one rank --------------------------------------------------------------------------------------------------------------


def test_before_the_first_reconfigure_there_are_no_ranks() -> None:
    comm = waiting()
    assert (comm.get_rank(), comm.get_size()) == (-1, 0)
    for attempt in (
        lambda: comm.barrier(False),
        lambda: comm.all_reduce(torch.ones(1), ReduceOp.SUM, False),
        lambda: comm.send(torch.ones(1), 0, True),
        lambda: comm.split([0]),
    ):
        with pytest.raises(RuntimeError, match="reconfigure"):
            attempt()
    handle = comm.get_init_handle()
    assert isinstance(handle, str) and handle and comm.get_init_handle() == handle
    comm.reconfigure(0, [handle]).wait()
    assert (comm.get_rank(), comm.get_size()) == (0, 1)
    tensor = torch.ones(3)
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    comm.reconfigure("again", {handle}).wait()
    comm.barrier(False)
    assert comm.get_init_handle() == handle
    comm.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        comm.reconfigure(1, [handle])


def test_handles_differ_and_an_unknown_one_is_rejected() -> None:
    first, second = waiting("a"), waiting("a")
    mine, other = first.get_init_handle(), second.get_init_handle()
    assert mine != other
    with pytest.raises(RuntimeError, match="not among"):
        first.reconfigure(0, [other])
    with pytest.raises(RuntimeError, match="not among"):
        first.reconfigure(0, [])
    with pytest.raises(RuntimeError, match="twice"):
        first.reconfigure(0, [mine, mine])
    # Nothing has begun, so there is nothing to end.
    with pytest.raises(RuntimeError, match="never initialised"):
        first.finalize()


def test_a_missing_member_is_reported_in_time() -> None:
    comm, absent = waiting("a"), waiting("b")
    handles = [comm.get_init_handle(), absent.get_init_handle()]
    for order in (handles, handles[::-1]):
        began = time.monotonic()
        with pytest.raises(RuntimeError):
            comm.reconfigure(0, order, timeout=timedelta(seconds=0.4)).wait()
        assert time.monotonic() - began < 5
        assert (comm.get_rank(), comm.get_size()) == (-1, 0)
        with pytest.raises(RuntimeError, match="failed"):
            comm.barrier(False)
    # It can be reconfigured again.
    comm.reconfigure(1, handles[:1]).wait()
    comm.barrier(False)
    comm.finalize()


# --- scenarios with several --------------------------------------------------------------------------------------------------


def scenarios(path: str) -> list[tuple[int, int, float]]:
    """Four processes: all, fewer, in another order, back to all, halves at once, merged, one each, all again."""
    board, comm, seen = HandleBoard(path), waiting(), []
    board.tell(comm)
    handles = board.handles(0, 1, 2, 3)

    def become(uuid: int, *numbers: int, unordered: bool = False) -> None:
        if me() in numbers:
            chosen = [handles[number] for number in numbers]
            comm.reconfigure(uuid, set(chosen) if unordered else chosen).wait()
            seen.append(total(comm))

    become(0, 0, 1, 2, 3)
    become(1, 0, 1, 2, 3)  # the same again
    become(2, 2, 0, 3)  # without 1, and in another order
    become(3, 3, 2, 1, 0)  # with it again
    # Halves, at the same moment, under the same number.
    become(4, 0, 1)
    become(4, 2, 3)
    become(5, 0, 1, 2, 3, unordered=True)
    become(6, me())
    become(7, 1, 3)  # grows and shrinks
    become(7, 0, 2)
    become(8, 1, 0, 2)
    become(9, 0, 1, 2, 3)
    comm.finalize()
    return seen


def test_ranks_come_and_go_in_every_way(ranks: Ranks, tmp_path: Path) -> None:
    seen = ranks.run(4, scenarios, str(tmp_path / "board"))
    zero, one, two, three = seen
    every = 1111.0
    assert zero[:4] == [(0, 4, every), (0, 4, every), (1, 3, 1101.0), (3, 4, every)]
    assert one[:3] == [(1, 4, every), (1, 4, every), (2, 4, every)]
    assert two[:4] == [(2, 4, every), (2, 4, every), (0, 3, 1101.0), (1, 4, every)]
    assert three[:4] == [(3, 4, every), (3, 4, every), (2, 3, 1101.0), (0, 4, every)]
    assert [results[4 if results is not one else 3] for results in seen] == [
        *((0, 2, 11.0), (1, 2, 11.0), (0, 2, 1100.0), (1, 2, 1100.0))
    ]
    # A set leaves the order to us; each has a rank of its own.
    assert sorted(results[5 if results is not one else 4] for results in seen) == [
        (r, 4, every) for r in range(4)
    ]
    assert [results[-1] for results in seen] == [(r, 4, every) for r in range(4)]


def survives(path: str, rounds: int) -> tuple[float, tuple[int, int, float]]:
    """Rank 1 is killed in the middle of all-reduces. The others go on without it."""
    board, comm = HandleBoard(path), waiting()
    board.tell(comm)
    comm.reconfigure(0, board.handles(0, 1, 2)).wait()
    tensor = torch.full((1 << 18,), 1.0)
    before = tensor.clone()
    try:
        for step in range(rounds):
            tensor.copy_(before)
            if me() == 1 and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.all_reduce(tensor, ReduceOp.SUM, False)
    except RuntimeError as error:
        assert "rank 1" in str(error), error
    assert comm.is_aborted()
    # The buffer of a failed operation is restored.
    assert torch.equal(tensor, before), tensor
    began = time.monotonic()
    comm.reconfigure(1, board.handles(0, 2)).wait()
    took = time.monotonic() - began
    assert not comm.is_aborted()
    result = total(comm)
    comm.finalize()
    return took, result


def test_the_others_go_on_when_one_is_killed(ranks: Ranks, tmp_path: Path) -> None:
    outcomes = ranks.start(3, survives, str(tmp_path / "board"), 100_000).outcomes()
    assert [outcome.code for outcome in outcomes] == [0, -9, 0], [o.error for o in outcomes]
    for rank, outcome in ((0, outcomes[0]), (1, outcomes[2])):
        took, result = outcome.value
        sys.stdout.write(f"rank {outcome.rank} was reconfigured after {took * 1000:.1f} ms\n")
        assert result == (rank, 2, 101.0) and took < 5


def after_timeout(path: str) -> tuple[int, int, float]:
    board, comm = HandleBoard(path), waiting()
    board.tell(comm)
    handles = board.handles(0, 1)
    comm.reconfigure(0, handles).wait()
    comm.barrier(False)
    if me() == 0:
        with pytest.raises(RuntimeError, match="rank 1"):
            comm.barrier(False, timeout=0.3)
    board.meet("timed out", 2)
    comm.reconfigure(1, handles).wait()
    result = total(comm)
    comm.finalize()
    return result


def test_after_a_timeout_the_same_ranks_go_on(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, after_timeout, str(tmp_path / "board")) == [(0, 2, 11.0), (1, 2, 11.0)]


def late_join(path: str) -> list[tuple[int, int, float]]:
    board, comm, seen = HandleBoard(path), waiting(), []
    if me() < 2:
        board.tell(comm)
        comm.reconfigure(0, board.handles(0, 1)).wait()
        seen.append(total(comm))
        reach(Path(path).parent, f"first {me()}")
    else:
        await_reached(Path(path).parent, "first 0", "first 1")
        board.tell(comm)
    comm.reconfigure(1, board.handles(0, 1, 2)).wait()
    seen.append(total(comm))
    comm.finalize()
    return seen


def test_a_newcomer_joins_later(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(3, late_join, str(tmp_path / "board")) == [
        [(0, 2, 11.0), (0, 3, 111.0)],
        [(1, 2, 11.0), (1, 3, 111.0)],
        [(2, 3, 111.0)],
    ]


def ordinary(path: str) -> list[tuple[int, int, float]]:
    """Also a communicator that was not made for it can be reconfigured, with work under way, and so can its children."""
    board = HandleBoard(path)
    comm = torchcomms.new_comm("gloo", CPU, "ordinary", timeout=20.0)
    seen = [total(comm)]
    board.tell(comm)
    handles = board.handles(0, 1, 2)
    under_way = torch.ones(100_000)
    work = comm.all_reduce(under_way, ReduceOp.SUM, True)
    comm.reconfigure(5, handles[::-1]).wait()
    work.wait()
    assert under_way[-1].item() == 3.0
    seen.append(total(comm))
    child = comm.split([0, 1]) if comm.get_rank() < 2 else comm.split([])
    if child is not None:
        assert total(child)[1:] == (2, 110.0)
        child.finalize()
    comm.finalize()
    return seen


def test_any_communicator_of_the_engine_can_be_reconfigured(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(3, ordinary, str(tmp_path / "board")) == [
        [(0, 3, 111.0), (2, 3, 111.0)],
        [(1, 3, 111.0), (1, 3, 111.0)],
        [(2, 3, 111.0), (0, 3, 111.0)],
    ]


def restored(path: str) -> bool:
    """Rank 1 aborts; the buffers of the others are restored."""
    board, comm = HandleBoard(path), waiting()
    board.tell(comm)
    comm.reconfigure(0, board.handles(0, 1)).wait()
    comm.barrier(False)
    if me() == 1:
        await_reached(Path(path).parent, "issued")
        comm.abort()
        assert comm.is_aborted()
        is_kept = True
    else:
        tensor = torch.arange(1 << 20, dtype=torch.float32)
        work = comm.all_reduce(tensor, ReduceOp.SUM, True)
        reach(Path(path).parent, "issued")
        with pytest.raises(RuntimeError, match="rank 1"):
            work.wait()
        is_kept = torch.equal(tensor, torch.arange(1 << 20, dtype=torch.float32))
    comm.reconfigure(1, board.handles(0, 1)).wait()
    comm.barrier(False)
    comm.finalize()
    return is_kept


def test_after_an_abort_buffers_are_restored(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, restored, str(tmp_path / "board")) == [True, True]
