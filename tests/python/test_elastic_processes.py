"""What `ringfold.Run` promises when peers are killed or get signals: peers that are processes."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from elastic_runs import PEER, assert_same, begin_together, steps_of, train
from peers import DEADLINE, begin, together

np = pytest.importorskip("numpy")
ringfold = pytest.importorskip("ringfold")
pccl = pytest.importorskip("pccl")

from ringfold.elastic import StateRejected


def train_and_kill(master: str, spawn: Any) -> None:
    """Two peers train for some steps and are killed."""
    dying = [spawn(PEER, master, seed, 4000, 0.02) for seed in range(2)]
    for peer in dying:
        peer.wait_for("step 8 ", DEADLINE)
    for peer in dying:
        peer.kill()


def test_a_run_whose_peers_all_died_continues_from_the_newest_checkpoint(master: str, spawn: Any) -> None:
    train_and_kill(master, spawn)
    ended = together(lambda: train(master, 2, 8, revision=3), lambda: train(master, 3, 8, revision=5))
    assert ended[0] == ended[1] and ended[0][1] == [5, 6, 7]


def test_a_run_whose_peers_and_master_died_continues_from_the_newest_checkpoint(spawn: Any) -> None:
    with pccl.MasterNode("127.0.0.1:0") as first:
        address = first.address
        train_and_kill(address, spawn)
    with pccl.MasterNode(address):
        ended = together(lambda: train(address, 2, 8, revision=3), lambda: train(address, 3, 8, revision=5))
    assert ended[0][0] == ended[1][0] and ended[1][1] == [5, 6, 7]


def test_peers_do_not_wait_for_ever_for_one_that_does_not_come_back(spawn: Any) -> None:
    with pccl.MasterNode("127.0.0.1:0", recover_after=1) as node:
        train_and_kill(node.address, spawn)
        _, steps = train(node.address, 2, 8, revision=5, peers_min=1)
    assert steps == [5, 6, 7]


def test_a_run_whose_peers_all_died_resumes_from_a_checkpoint_with_send_only(spawn: Any) -> None:
    with pccl.MasterNode("127.0.0.1:0", recover="manual") as node:
        master = node.address
        train_and_kill(master, spawn)
        silently = [begin(lambda seed=seed: train(master, seed, 8, revision=5)) for seed in range(2)]
        for future in silently:
            with pytest.raises(StateRejected, match="strategy=SEND_ONLY") as rejected:
                future.result(DEADLINE)
            assert not rejected.value.is_retryable
        sends, receives = pccl.SharedStateSyncStrategy.SEND_ONLY, pccl.SharedStateSyncStrategy.RECEIVE_ONLY
        ended = together(
            lambda: train(master, 2, 8, revision=5, strategy=sends),
            lambda: train(master, 3, 8, strategy=receives),
        )
    assert ended[0] == ended[1] and ended[0][1] == [5, 6, 7]


def test_settings_of_the_recovery_are_checked() -> None:
    for wrong in ({"recover": "oldest"}, {"recover_after": -1.0}, {"recover_after": float("nan")}):
        with pytest.raises(ValueError, match=r"policy|recover_after"):
            pccl.MasterNode("127.0.0.1:0", **wrong)
    with pytest.raises(pccl.PCCLError, match=r"must be 1\.\."):
        pccl.MasterNode("127.0.0.1:0", recover_min=0).run()


def test_survivors_go_on_with_equal_bits_when_a_peer_is_killed(
    master: str, spawn: Any, tmp_path: Path
) -> None:
    peers = begin_together(spawn, tmp_path / "gate", PEER, [(master, seed, 60, 0.02) for seed in range(3)])
    for peer in peers:
        peer.wait_for("step 10 ", DEADLINE)
    peers[1].kill()
    outputs = [peers[0].succeed(DEADLINE), peers[2].succeed(DEADLINE)]
    assert_same(*outputs, peers[1].output)
    assert all(set(range(20, 60)) <= set(steps_of(output)) for output in outputs)
    assert "step 59" in outputs[0] and " of 2" in outputs[0]


def test_a_run_that_shrank_to_one_goes_on_when_another_joins(master: str, spawn: Any) -> None:
    first, second = (spawn(PEER, master, seed, 40, 0.02) for seed in range(2))
    first.wait_for("step 5 ", DEADLINE)
    second.wait_for("step 5 ", DEADLINE)
    second.kill()
    third = spawn(PEER, master, 2, 40, 0.02)
    outputs = [first.succeed(DEADLINE), third.succeed(DEADLINE)]
    assert_same(*outputs, second.output)
    begun = min(steps_of(outputs[1]))
    assert begun > 5 and set(range(begun, 40)) == set(steps_of(outputs[1])) <= set(steps_of(outputs[0]))


def test_sigterm_while_it_computes_ends_a_peer_after_the_step(
    master: str, spawn: Any, tmp_path: Path
) -> None:
    peers = begin_together(spawn, tmp_path / "gate", PEER, [(master, seed, 40, 0.1) for seed in range(3)])
    for peer in peers:
        peer.wait_for("step 5 ", DEADLINE)
    peers[1].wait_for("computes 6", DEADLINE)
    peers[1].signal(signal.SIGTERM)
    stopped = peers[1].succeed(20)
    assert "stopped: True" in stopped
    outputs = [peers[0].succeed(DEADLINE), peers[2].succeed(DEADLINE)]
    assert_same(*outputs, stopped)
    assert all("ended at 40, stopped: False" in output for output in outputs)


def test_sigterm_while_it_waits_in_a_reduction_ends_a_peer_at_once(master: str, spawn: Any) -> None:
    hasty = spawn(PEER, master, 0, 5, 0.0)
    slow = spawn(PEER, master, 1, 5, 8.0)
    hasty.wait_for("reduces 0", DEADLINE)
    slow.wait_for("computes 0", DEADLINE)
    hasty.wait_until_blocked()
    hasty.signal(signal.SIGTERM)
    assert "ended at 0, stopped: True" in hasty.succeed(20)
    assert "reduces 0" not in slow.output
    # The other one finishes its step alone, and then waits for peers.
    slow.wait_for("step 0 ", DEADLINE)
    slow.wait_until_blocked()
    slow.signal(signal.SIGTERM)
    assert "ended at 1, stopped: True" in slow.succeed(20)


def test_sigterm_before_a_peer_is_admitted_ends_it_at_once(master: str, spawn: Any) -> None:
    hasty, slow = spawn(PEER, master, 0, 5, 0.0), spawn(PEER, master, 1, 5, 60.0)
    hasty.wait_for("reduces 0", DEADLINE)
    slow.wait_for("computes 0", DEADLINE)
    pending = spawn(PEER, master, 2, 5, 0.0)
    pending.wait_for("ready", DEADLINE)
    pending.wait_until_blocked()
    assert "joined" not in pending.output
    pending.signal(signal.SIGTERM)
    assert "stopped: True" in pending.succeed(20)


def test_ctrl_c_passes_through_and_the_peer_has_left(master: str, spawn: Any, tmp_path: Path) -> None:
    peers = begin_together(spawn, tmp_path / "gate", PEER, [(master, seed, 40, 0.05) for seed in range(3)])
    for peer in peers:
        peer.wait_for("step 5 ", DEADLINE)
    peers[2].signal(signal.SIGINT)
    assert peers[2].wait(20) == 130
    assert "interrupted" in peers[2].output
    outputs = [peers[0].succeed(DEADLINE), peers[1].succeed(DEADLINE)]
    assert_same(*outputs, peers[2].output)


def test_a_peer_that_was_removed_joins_again(master: str, spawn: Any, tmp_path: Path) -> None:
    peers = begin_together(spawn, tmp_path / "gate", PEER, [(master, seed, 150, 0.05) for seed in range(3)])
    for peer in peers:
        peer.wait_for("step 5 ", DEADLINE)
    peers[2].signal(signal.SIGSTOP)
    # The others go on without it.
    peers[0].wait_for(" of 2", DEADLINE)
    peers[2].signal(signal.SIGCONT)
    outputs = [peer.succeed(DEADLINE) for peer in peers]
    assert "joins the run again (1 of 5)" in outputs[2]
    assert all("ended at 150, stopped: False" in output for output in outputs)
    # The step that it lost does not count: its world has no peers.
    kept = [line for line in outputs[2].splitlines() if not line.endswith(" of 0")]
    assert_same(outputs[0], outputs[1], "\n".join(kept))
    assert 149 in steps_of(outputs[2])


STUCK = """
import sys, time
import numpy as np, ringfold

with ringfold.Run(sys.argv[1], {"x": np.zeros(1)}, peers_min=1) as run:
    for step in run.steps():
        while True:
            try:
                print("stuck", flush=True)
                for _ in range(10**9):
                    time.sleep(0.01)
                    if run.was_stopped: print("asked", flush=True)
            except KeyboardInterrupt:
                print("asked", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [(), ("-i",)])
def test_the_second_signal_ends_a_stuck_peer_at_once(
    master: str, start: Any, number: int, options: tuple[str, ...]
) -> None:
    child = start(sys.executable, *options, "-c", STUCK, master)
    child.wait_for("stuck", DEADLINE)
    # At first they count as one, since torchrun and a service manager may both send it.
    child.signal(number)
    child.signal(number)
    child.wait_for("asked", DEADLINE)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        child.signal(number)
        with suppress(AssertionError):
            assert child.wait(0.3) == -number
            return
    pytest.fail("it has not ended")


SIGNALS = """
import signal, sys, threading, time
import numpy as np, ringfold

def own(number, frame): print("own handler", flush=True)

signal.signal(signal.SIGTERM, own)
with ringfold.Run(sys.argv[1], {"x": np.zeros(1)}, peers_min=1) as run:
    assert signal.getsignal(signal.SIGTERM) != own
with ringfold.Run(sys.argv[1], {"x": np.zeros(1)}, peers_min=1, handle_sigterm=False) as run:
    assert signal.getsignal(signal.SIGTERM) == own
assert signal.getsignal(signal.SIGTERM) == own

# A run on a second thread is ended by a signal to the main one.
run = ringfold.Run(sys.argv[1], {"x": np.zeros(1)}, peers_min=2)
with run:
    def body():
        try:
            for step in run.steps(): pass
        except BaseException as error:
            print("thread ended by", type(error).__name__, flush=True)
    thread = threading.Thread(target=body)
    thread.start()
    print("waiting", flush=True)
    thread.join()
assert run.was_stopped and signal.getsignal(signal.SIGTERM) == own
print("over", flush=True)
"""


def test_the_users_sigterm_handler_is_restored_and_waits_on_other_threads_end(
    master: str, spawn: Any
) -> None:
    child = spawn(SIGNALS, master)
    child.wait_for("waiting", DEADLINE)
    child.wait_until_blocked()
    child.signal(signal.SIGTERM)
    output = child.succeed(20)
    assert "thread ended by Stopped" in output and "over" in output
