"""Failures of operations that no thread waits for, in processes that end on failures."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torchcomms
from ranks import DEADLINE, Ranks, await_reached, reach
from torchcomms import ReduceOp, TorchComm, _watcher

CPU = torch.device("cpu")
ABORTED = -signal.SIGABRT


def made(timeout: float = 30.0, backend: str = "ncclx") -> TorchComm:
    comm = torchcomms.new_comm(backend, CPU, "unattended", timeout=timeout)
    comm.barrier(False)
    return comm


def start(comm: TorchComm, op: str) -> object:
    """Starts an operation that rank 1 takes no part in."""
    tensor = torch.ones(4)
    if op == "all_reduce":
        return comm.all_reduce(tensor, ReduceOp.SUM, True, timeout=0.5)
    if op == "recv":
        return comm.recv(tensor, 1, True, timeout=0.5)
    batch = comm.batch_op_create()
    batch.recv(tensor, 1)
    batch.recv(torch.ones(2), 1)
    return batch.issue(True, torchcomms.BatchP2POptions(timeout=0.5))


def never_waits(op: str, backend: str, keeps: bool) -> None:
    comm = made(backend=backend)
    if comm.get_rank() == 0:
        comm.register_abort_hook(lambda: print("abort hook", flush=True))
        work = start(comm, op)
        if not keeps:
            del work
            gc.collect()
        time.sleep(8.0)
        print("goes on", flush=True)
        os._exit(0)
    # The test kills this rank when the other one has ended.
    signal.pause()


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(
    "op, named", [("all_reduce", "all_reduce"), ("recv", "recv"), ("batch", "batch_op_issue")]
)
def test_a_timeout_that_no_thread_waits_for_ends_the_process(
    ranks: Ranks, op: str, named: str, keeps: bool
) -> None:
    running = ranks.start(2, never_waits, op, "ncclx", keeps)
    running.children[0].wait(DEADLINE)
    running.kill(1)
    outcome = running.outcomes()[0]
    assert outcome.code == ABORTED, outcome
    assert f"ending this process: {named} of communicator 'unattended' failed after " in outcome.log
    assert "timed out waiting for rank 1" in outcome.log
    assert outcome.log.index("abort hook") < outcome.log.index("ending this process")
    assert "goes on" not in outcome.log


def test_without_that_option_the_process_goes_on(ranks: Ranks) -> None:
    running = ranks.start(2, never_waits, "all_reduce", "gloo", True)
    running.children[0].wait(DEADLINE)
    running.kill(1)
    outcome = running.outcomes()[0]
    assert outcome.code == 0 and "goes on" in outcome.log, outcome


def polls() -> None:
    comm = made()
    if comm.get_rank() == 0:
        work = comm.all_reduce(torch.ones(4), ReduceOp.SUM, True, timeout=0.5)
        while not work.is_completed():
            time.sleep(0.01)
        time.sleep(8.0)
    signal.pause()


def test_an_error_that_was_only_polled_ends_the_process(ranks: Ranks) -> None:
    running = ranks.start(2, polls)
    running.children[0].wait(DEADLINE)
    running.kill(1)
    assert running.outcomes()[0].code == ABORTED


def waits_for_the_dead(folder: Path) -> None:
    comm = made()
    if comm.get_rank() == 0:
        comm.recv(torch.ones(4), 1, True)
        reach(folder, "waits")
    elif comm.get_rank() == 2:
        # Nothing is under way here, so the death of another rank does not end this process.
        reach(folder, "idle")
        await_reached(folder, "dead")
        time.sleep(1.5)
        print("goes on", flush=True)
        os._exit(0)
    time.sleep(30.0)


def test_a_rank_that_dies_ends_only_processes_with_operations_under_way(ranks: Ranks, tmp_path: Path) -> None:
    running = ranks.start(3, waits_for_the_dead, tmp_path)
    await_reached(tmp_path, "waits")
    await_reached(tmp_path, "idle")
    running.kill(1)
    reach(tmp_path, "dead")
    began = time.monotonic()
    outcomes = running.outcomes()
    assert outcomes[0].code == ABORTED and "recv of communicator" in outcomes[0].log, outcomes[0]
    assert "rank 1" in outcomes[0].log
    assert outcomes[2].code == 0 and "goes on" in outcomes[2].log, outcomes[2]
    assert time.monotonic() - began < 20.0


def succeeds() -> list[bool]:
    comm = made()
    other = 1 - comm.get_rank()
    kept = torch.ones(1000)
    is_alive = weakref.ref(kept)
    for _ in range(200):
        comm.all_reduce(kept, ReduceOp.MAX, True)
    comm.send(kept, other, True)
    comm.recv(torch.empty(1000), other, True).wait()
    comm.barrier(False)
    del kept
    until = time.monotonic() + 10.0
    while is_alive() is not None and time.monotonic() < until:
        time.sleep(0.05)
    # What is still under way at the end is not reported: a finalized communicator has no user.
    comm.recv(torch.empty(4), other, True, timeout=0.3)
    comm.finalize()
    time.sleep(1.5)
    return [is_alive() is None]


def test_watched_works_free_their_tensors_and_finalized_ones_are_forgotten(ranks: Ranks) -> None:
    assert ranks.run(2, succeeds) == [[True]] * 2


def exits_with_work(folder: Path) -> None:
    comm = made()
    if comm.get_rank() == 0:
        comm.recv(torch.empty(4), 1, True)
        reach(folder, "started")
        return
    await_reached(folder, "started")


def test_a_process_may_exit_with_works_under_way(ranks: Ranks, tmp_path: Path) -> None:
    outcomes = ranks.start(2, exits_with_work, tmp_path, exits_fully=True).outcomes()
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes


def aborts() -> str:
    comm = made()
    if comm.get_rank() == 0:
        work = comm.recv(torch.empty(4), 1, True)
        comm.abort()
        time.sleep(1.0)
        comm.finalize()
        return str(work.status)
    time.sleep(1.0)
    comm.finalize()
    return ""


def test_a_rank_that_aborts_expects_its_works_to_fail(ranks: Ranks) -> None:
    assert ranks.run(2, aborts)[0] == "WorkStatus.ERROR"


class StubBackend:
    """A device that is in some state."""

    state: tuple[BaseException | None, int | None] = (None, 0)

    def device_state(self) -> tuple[BaseException | None, int | None]:
        return self.state


class StubComm:
    _is_final = _was_aborted = False

    def __init__(self) -> None:
        self._backend = StubBackend()

    def get_name(self) -> str:
        return "stub"


class Failure(RuntimeError):
    def __init__(self, kind: str) -> None:
        super().__init__(f"{kind}: rank 1")
        self.kind = kind


@pytest.mark.parametrize("kind", ["timeout", "mismatch", "lost", "aborted"])
@pytest.mark.parametrize("unfinished", [0, 2])
def test_failures_of_devices_name_the_oldest_unfinished_operation(
    monkeypatch: pytest.MonkeyPatch, kind: str, unfinished: int
) -> None:
    texts: list[str] = []
    monkeypatch.setattr(_watcher, "end_process", lambda comm, why: texts.append(why))
    monkeypatch.setattr(_watcher._watcher, "add", lambda watch: None)
    comm: Any = StubComm()
    watch = _watcher.DeviceWatch(comm)
    for op in ("all_reduce", "broadcast", "all_gather"):
        watch.add(op, time.monotonic() - 5.0)
    comm._backend.state = (None, None)  # another thread queues one
    assert not watch._is_over()
    comm._backend.state = (None, unfinished)
    assert not watch._is_over() and not texts
    comm._backend.state = (Failure(kind), None)
    assert watch._is_over()
    if unfinished:
        assert texts == [f"broadcast of communicator 'stub' failed after 5.0 s: {kind}: rank 1"]
    elif kind in ("timeout", "mismatch"):
        # It was an operation in a graph.
        assert texts == [f"communicator 'stub' failed: {kind}: rank 1"]
    else:
        assert texts == []
    comm._is_final = True
    assert watch._is_over()


def uses_windows(folder: Path) -> None:
    comm = made(timeout=20.0)
    window = comm.new_window(torch.zeros(8))
    if comm.get_rank() == 0:
        # A wait for a signal that times out may be repeated.
        with pytest.raises(RuntimeError, match="timed out waiting for a signal"):
            window.wait_signal(1, False, timeout=0.1)
        unwaited = window.wait_signal(1, True, timeout=0.1)
        time.sleep(1.0)
        window.wait_signal(1, True)
        reach(folder, "waits")
        time.sleep(8.0)
        print("goes on", unwaited, flush=True)
    signal.pause()


def test_a_lost_rank_ends_a_process_that_waits_for_its_signal(ranks: Ranks, tmp_path: Path) -> None:
    running = ranks.start(2, uses_windows, tmp_path)
    await_reached(tmp_path, "waits")
    running.kill(1)
    outcome = running.outcomes()[0]
    assert outcome.code == ABORTED and "goes on" not in outcome.log, outcome
    assert "wait_signal of a window of communicator 'unattended' failed after" in outcome.log
    assert "rank 1" in outcome.log


def forks(folder: Path) -> int:
    comm = made()
    if comm.get_rank() == 0:
        work = comm.recv(torch.empty(4), 1, True)
        child = os.fork()
        if child == 0:
            time.sleep(1.0)
            os._exit(0)
        code = os.waitpid(child, 0)[1]
        reach(folder, "forked")
        work.wait()
    else:
        code = 0
        await_reached(folder, "forked")
        comm.send(torch.ones(4), 0, False)
    comm.finalize()
    return code


def test_a_forked_child_watches_nothing(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, forks, tmp_path) == [0, 0]
