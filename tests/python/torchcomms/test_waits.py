"""What a rank says when it waits, in its log and in the exception: torchcomms and torch.distributed."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchcomms
from ranks import DEADLINE, Ranks, await_reached, reach
from torchcomms import ReduceOp
from training import process_group

CPU = torch.device("cpu")
# Warnings come after 0.5 s and 1 s.
SOON = {"RINGFOLD_WARN_AFTER": "0.5"}
TIMEOUT_SECONDS = 1.2
# What rank 1 does instead, and what rank 0 says of it.
OTHERS = {
    "computes": "alive, computing",
    "stops": "its process is stopped",
    "receives": "alive, waits in recv #1 from rank 0 (4 float32) for ",
}

Call = Callable[[torch.Tensor], object]


def part(folder: Path, other: str, reduce: Call, receive: Call) -> str:
    """Rank 0 reduces, rank 1 does something else. Returns the error of rank 0."""
    tensor = torch.ones(4)
    if int(os.environ["RANK"]) == 1:
        reach(folder, "there")
        if other == "receives":
            with pytest.raises(RuntimeError):
                receive(tensor)
        else:
            if other == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
            await_reached(folder, "failed")
        return ""
    await_reached(folder, "there")
    with pytest.raises(RuntimeError) as failed:
        reduce(tensor)
    reach(folder, "failed")
    return str(failed.value)


def with_torchcomms(folder: Path, other: str) -> str:
    comm = torchcomms.new_comm("ringfold", CPU, "waits", timeout=30.0)
    comm.barrier(False)

    def reduce(tensor: torch.Tensor) -> None:
        comm.all_reduce(tensor, ReduceOp.SUM, False, timeout=TIMEOUT_SECONDS)

    error = part(folder, other, reduce, lambda tensor: comm.recv(tensor, 0, False))
    comm.finalize()
    return error


def with_torch_distributed(folder: Path, other: str) -> str:
    with process_group("ringfold", folder):
        dist.barrier()
        if dist.get_rank() == 0:
            dist.group.WORLD._get_backend(CPU).set_timeout(timedelta(seconds=TIMEOUT_SECONDS))  # type: ignore[union-attr]
        return part(folder, other, dist.all_reduce, lambda tensor: dist.recv(tensor, 0))


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("program", [with_torchcomms, with_torch_distributed])
def test_a_rank_says_for_whom_it_waits_and_what_that_one_does(
    ranks: Ranks, tmp_path: Path, program: Callable[..., str], other: str
) -> None:
    running = ranks.start(2, program, tmp_path, other, env=SOON)
    await_reached(tmp_path, "failed", deadline=DEADLINE)
    running.signal(1, signal.SIGCONT)
    outcome = running.outcomes()[0]
    error, state = outcome.value, OTHERS[other]
    assert error is not None, outcome
    call = r"timed out waiting for rank 1 \(.*\) for [\d.]+ s: it has not called all_reduce #2 \(4 float32\) \(last heard "
    assert re.search(call, error) and state in error, error
    warnings = waits_in_reductions(outcome.log)
    assert 1 <= len(warnings) <= 2, outcome.log
    assert all("WARN" in line and "still waiting for rank 1 (" in line for line in warnings), warnings
    assert any(state in line for line in warnings), warnings


def waits_in_reductions(log: str) -> list[str]:
    """The warnings of reductions. On a loaded machine, there may be others while the ranks connect."""
    return [line for line in log.splitlines() if "still waiting" in line and "all_reduce" in line]


def late() -> str:
    comm = torchcomms.new_comm("ringfold", CPU, "late", timeout=30.0)
    for _ in range(2):
        if comm.get_rank() == 1:
            time.sleep(0.3)
        comm.all_reduce(torch.ones(4), ReduceOp.SUM, False)
    comm.finalize()
    return "done"


def test_a_short_wait_is_not_logged(ranks: Ranks) -> None:
    for outcome in ranks.start(2, late).outcomes():
        assert outcome.value == "done" and not waits_in_reductions(outcome.log), outcome
