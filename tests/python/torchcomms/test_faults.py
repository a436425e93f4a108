"""Ranks that die, do not call, or abort."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torchcomms
from blocked import leave_pid, wait_until_other_blocked
from ranks import DEADLINE, Ranks, await_reached, reach
from torchcomms import AbortInfo, AbortReason, ReduceOp, TorchComm, WorkStatus

CPU = torch.device("cpu")


def made(name: str = "c", timeout: float = 30.0, **options: bool) -> TorchComm:
    return torchcomms.new_comm("ringfold", CPU, name, timeout=timeout, **options)


def say(*words: object) -> None:
    print(*words, flush=True)


def reduces_for_ever() -> None:
    comm = made()
    hooks: list[str] = []
    comm.register_abort_hook(lambda: hooks.append("aborted"))
    tensor = torch.ones(1 << 20)
    step = 0
    try:
        while True:
            comm.all_reduce(tensor.fill_(1.0), ReduceOp.SUM, False)
            step += 1
            if step == 3:
                say("going")
    except RuntimeError as error:
        say(f"raised {time.time():.6f} {error}")
        assert hooks == ["aborted"], "abort hooks run before the error is raised"
    assert comm.is_aborted()
    # Later calls fail as well, at once.
    began = time.monotonic()
    for is_async in (False, True):
        with pytest.raises(RuntimeError):
            comm.all_reduce(tensor, ReduceOp.SUM, is_async).wait()
    assert time.monotonic() - began < 5 and hooks == ["aborted"]
    comm.finalize()


def test_a_killed_rank_is_named_to_all_others_at_once(ranks: Ranks) -> None:
    running = ranks.start(3, reduces_for_ever)
    for rank in range(3):
        running.wait_for(rank, "going")
    killed = time.time()
    running.kill(1)
    for rank in (0, 2):
        line = running.wait_for(rank, "raised")
        took = float(line.split()[1]) - killed
        sys.stdout.write(f"rank {rank} heard after {took * 1000:.1f} ms: {line}\n")
        assert "rank 1" in line
        assert took < 2.0
    assert [outcome.code for outcome in running.outcomes()] == [0, -9, 0]


def times_out(folder: Path, is_async: bool) -> str:
    comm = made()
    comm.barrier(False)
    tensor = torch.ones(4)
    if comm.get_rank() == 1:
        await_reached(folder, "rank 0 gave up", "rank 2 gave up")
        try:
            comm.all_reduce(tensor, ReduceOp.SUM, False)
        except RuntimeError as error:
            return str(error)
        return "nothing"
    began = time.monotonic()
    try:
        work = comm.all_reduce(tensor, ReduceOp.SUM, is_async, timeout=timedelta(seconds=0.5))
        assert is_async
        while not work.is_completed():
            time.sleep(0.01)
        assert work.status is WorkStatus.TIMEDOUT
        for _ in range(2):
            with pytest.raises(RuntimeError):
                work.wait()
        work.wait()
    except RuntimeError as error:
        assert 0.4 < time.monotonic() - began < 15.0
        assert comm.is_aborted()
        reach(folder, f"rank {comm.get_rank()} gave up")
        comm.finalize()
        return str(error)
    return "nothing"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_timeout_names_the_missing_rank_of_a_collective(
    ranks: Ranks, tmp_path: Path, is_async: bool
) -> None:
    texts = ranks.run(3, times_out, tmp_path, is_async)
    assert all("rank 1" in text for text in texts), texts


def settings(folder: Path) -> list[float]:
    comm = made(timeout=30)
    comm.barrier(False)
    took = []
    if comm.get_rank() == 0:
        comm.set_timeout(timedelta(seconds=0.3))
        began = time.monotonic()
        with pytest.raises(RuntimeError, match="rank 1"):
            comm.barrier(False)
        took.append(time.monotonic() - began)
        reach(folder, "given up")
    else:
        await_reached(folder, "given up")
    comm.finalize()
    return took


def test_the_timeout_of_a_communicator_can_be_changed(ranks: Ranks, tmp_path: Path) -> None:
    took = ranks.run(2, settings, tmp_path)
    assert 0.2 < took[0][0] < 10.0


def differs() -> str:
    comm = made()
    if comm.get_rank() == 0:
        tensor = torch.ones(4)
    else:
        tensor = torch.ones(5)
    with pytest.raises(RuntimeError) as error:
        comm.all_reduce(tensor, ReduceOp.SUM, False)
    comm.finalize()
    return str(error.value)


def test_mismatched_ranks_get_an_error(ranks: Ranks) -> None:
    texts = ranks.run(2, differs)
    assert all("rank" in text for text in texts), texts


def gives_up(folder: Path) -> str:
    comm = made()
    comm.barrier(False)
    assert comm.is_abort_supported() and not comm.is_aborted()
    assert comm.get_abort_info() == AbortInfo(AbortReason.NONE, "")
    hooks: list[int] = []
    comm.register_abort_hook(lambda: hooks.append(1))
    text = ""
    if comm.get_rank() == 0:
        for other in ("1", "2"):
            wait_until_other_blocked(folder, other)
        comm.abort(AbortReason.TIMED_OUT, "by hand")
    else:
        leave_pid(folder, str(comm.get_rank()))
        with pytest.raises(RuntimeError) as error:
            comm.barrier(False)
        text = str(error.value)
    assert comm.is_aborted() and hooks == [1]
    info = comm.get_abort_info()
    if comm.get_rank() == 0:
        assert info == AbortInfo(AbortReason.TIMED_OUT, "by hand")
        assert repr(info) == 'AbortInfo(reason=timed_out, context="by hand")'
    else:
        assert info.reason is AbortReason.ABORTED and "rank 0" in info.context
    assert hash(info) == hash(AbortInfo(info.reason, info.context)) and info != AbortInfo()
    with pytest.raises(RuntimeError):
        comm.barrier(False)
    comm.finalize()
    return text


def test_a_rank_that_aborts_is_named_to_the_others(ranks: Ranks, tmp_path: Path) -> None:
    texts = ranks.run(3, gives_up, tmp_path)
    assert all("rank 0" in text for text in texts[1:]), texts


def ends_process(backend: str, ends: bool | None) -> None:
    comm = torchcomms.new_comm(backend, CPU, "ends", abort_process_on_timeout_or_error=ends)
    if comm.get_rank() == 0:
        comm.barrier(False, timeout=0.3)
    else:
        # The test kills this rank when the other one has ended.
        signal.pause()


@pytest.mark.parametrize(
    "backend, ends, code",
    [("gloo", None, 1), ("gloo", True, -signal.SIGABRT), ("nccl", None, -signal.SIGABRT), ("nccl", False, 1)],
)
def test_a_failure_aborts_the_process_if_requested(
    ranks: Ranks, backend: str, ends: bool | None, code: int
) -> None:
    running = ranks.start(2, ends_process, backend, ends)
    running.children[0].wait(DEADLINE)
    running.kill(1)
    outcome = running.outcomes()[0]
    assert outcome.code == code
    assert (outcome.error or "").startswith("GroupError") == (code == 1)
    assert "rank 1" in outcome.log


def interrupted() -> str:
    comm = made()
    comm.barrier(False)
    if comm.get_rank() == 1:
        say("waiting")
        with pytest.raises(RuntimeError) as error:
            comm.recv(torch.empty(1), 0, False)
        comm.finalize()
        return str(error.value)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    say("waiting")
    with pytest.raises(KeyboardInterrupt):
        comm.recv(torch.empty(1), 1, False)
    comm.finalize()
    return ""


def test_ctrl_c_ends_a_wait_and_the_others_name_the_rank(ranks: Ranks) -> None:
    running = ranks.start(2, interrupted)
    for rank in range(2):
        running.wait_for(rank, "waiting")
        running.children[rank].wait_until_blocked()
    running.signal(0, signal.SIGINT)
    assert "rank 0" in running.results(20)[1]


def late_works() -> None:
    """An asynchronous work of a rank that died fails, also if it is looked at late."""
    comm = made()
    comm.barrier(False)
    if comm.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = comm.all_reduce(torch.ones(10), ReduceOp.SUM, True)
    other = comm.recv(torch.ones(10), 1, True)
    until = time.monotonic() + 20.0
    while not (work.is_completed() and other.is_completed()):
        assert time.monotonic() < until, "the death of rank 1 is not reported"
        time.sleep(0.002)
    assert work.status is WorkStatus.ERROR and other.status is WorkStatus.ERROR
    for one in (work, other):
        with pytest.raises(RuntimeError, match="rank 1"):
            one.wait()
    comm.finalize()


def test_works_of_a_dead_rank_end_by_themselves(ranks: Ranks) -> None:
    outcomes = ranks.start(2, late_works).outcomes()
    assert outcomes[0].is_good and outcomes[1].code == -9, outcomes[0]
