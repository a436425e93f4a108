"""Kernels that fail while no thread waits for them, in processes that end on failures."""

from __future__ import annotations

import faulthandler
import signal
import time

import pytest
import torch
import torchcomms
from ranks import Ranks
from torchcomms import ReduceOp, TorchComm

# How long kernels wait for a rank, and how long a test may take.
TIMEOUT, DEADLINE = 1.5, 40.0
ABORTED = -signal.SIGABRT


def made(timeout: float) -> TorchComm:
    faulthandler.dump_traceback_later(DEADLINE - 5.0, exit=True)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    comm = torchcomms.new_comm("nccl", device, "unattended", timeout=timeout)
    assert comm.get_backend_impl().has_device, "the collectives do not run on the device; the log says why"
    # Kernels are compiled with the first operation.
    comm.set_timeout(30.0)
    comm.all_reduce(torch.ones(1000, device=device), ReduceOp.SUM, False)
    torch.cuda.synchronize()
    comm.set_timeout(timeout)
    return comm


def missed(how: str) -> None:
    comm = made(TIMEOUT)
    tensor = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        comm.all_reduce(tensor, ReduceOp.SUM, False)
    if comm.get_rank() == 1:
        # The test kills this rank when the other one has ended.
        print("idle", flush=True)
        signal.pause()
    if how == "graph":
        graph.replay()
    else:
        comm.all_reduce(tensor, ReduceOp.SUM, how == "async", timeout=TIMEOUT)
    time.sleep(20.0)
    print("goes on", flush=True)


@pytest.mark.parametrize("how", ["sync", "async", "graph"])
def test_a_kernel_that_times_out_ends_the_process(ranks: Ranks, how: str) -> None:
    running = ranks.start(2, missed, how)
    running.wait_for(1, "idle")
    running.children[0].wait(DEADLINE)
    running.kill(1)
    outcome = running.outcomes()[0]
    assert outcome.code == ABORTED and "goes on" not in outcome.log, outcome
    named = "" if how == "graph" else "all_reduce of "
    assert f"ending this process: {named}communicator 'unattended' failed" in outcome.log
    assert "timed out waiting for rank 1" in outcome.log


def lost() -> None:
    comm = made(30.0)
    if comm.get_rank() == 1:
        print("idle", flush=True)
        signal.pause()
    comm.all_reduce(torch.ones(1000, device="cuda"), ReduceOp.SUM, False)
    print("queued", flush=True)
    time.sleep(20.0)
    print("goes on", flush=True)


def test_a_rank_that_dies_ends_a_process_whose_kernel_waits_for_it(ranks: Ranks) -> None:
    running = ranks.start(2, lost)
    running.wait_for(1, "idle")
    running.wait_for(0, "queued")
    time.sleep(1.0)
    running.kill(1)
    outcome = running.outcomes(DEADLINE)[0]
    assert outcome.code == ABORTED and "goes on" not in outcome.log, outcome
    assert "all_reduce of communicator 'unattended' failed after" in outcome.log and "rank 1" in outcome.log


def captures() -> list[float]:
    comm = made(30.0)
    tensor = torch.ones(1000, device="cuda")
    until = time.monotonic() + 3.0
    rounds = torch.ones(1)
    results = []
    while rounds.item() > 0:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            comm.all_reduce(tensor, ReduceOp.SUM, False)
            # The watcher looks at the device meanwhile.
            time.sleep(0.3)
            comm.all_reduce(tensor, ReduceOp.MAX, True).wait()
        tensor.fill_(1.0)
        graph.replay()
        comm.all_reduce(tensor, ReduceOp.MAX, True).wait()
        results.append(tensor[0].item())
        left = torch.full((1,), float(time.monotonic() < until), device="cuda")
        comm.all_reduce(left, ReduceOp.MIN, False)
        rounds = left.cpu()
    comm.finalize()
    return results


def test_the_watcher_does_not_disturb_captures(ranks: Ranks) -> None:
    results = ranks.run(2, captures, deadline=DEADLINE)
    assert all(value == 2.0 for one in results for value in one) and len(results[0]) > 2


def priorities() -> list[int]:
    comm = made(30.0)
    found = []
    for value in (None, "true", "false"):
        if value is not None:
            comm.set_hints({"torchcomm::ncclx::high_priority_stream": value})
        work = comm.all_reduce(torch.ones(10, device="cuda"), ReduceOp.SUM, True)
        work.wait_blocking()
        found.append(int(work.stream.priority))  # type: ignore[attr-defined]
    comm.finalize()
    return found


def test_the_priority_of_streams_can_be_changed(ranks: Ranks) -> None:
    assert ranks.run(2, priorities, deadline=DEADLINE) == [[0, -1, 0]] * 2
