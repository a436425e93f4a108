"""What `ringfold.Run` promises: real peers, as threads where that is enough and as processes where one has to die."""

from __future__ import annotations

import signal
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from peers import DEADLINE, begin, together

np = pytest.importorskip("numpy")
ringfold = pytest.importorskip("ringfold")
pccl = pytest.importorskip("pccl")

from ringfold.elastic import Rejected, Unequal, prepare_optimizer


def train(
    master: str,
    seed: int,
    until: int,
    *,
    each: Callable[[Any, int], None] = lambda run, step: None,
    **options: Any,
) -> tuple[bytes, list[int]]:
    """A small run of numpy: the final weights, and the steps it made."""
    chance = np.random.default_rng(seed)
    weights = chance.normal(size=37).astype(np.float32)
    steps = []
    with ringfold.Run(master, state={"weights": weights}, name=f"p{seed}", **options) as run:
        for step in run.steps(until=until):
            steps.append(step)
            gradient = weights - 3 + chance.normal(size=37).astype(np.float32)
            each(run, step)
            run.average(gradient)
            weights -= np.float32(0.1) * gradient
    return weights.tobytes(), steps


@pytest.mark.parametrize("count", [2, 3])
def test_peers_that_begin_with_different_weights_end_with_equal_bits(master: str, count: int) -> None:
    ended = together(*(lambda seed=seed: train(master, seed, 12, peers_min=count) for seed in range(count)))
    assert {weights for weights, _ in ended} == {ended[0][0]}
    assert all(steps == list(range(12)) for _, steps in ended)


def test_a_late_joiner_gets_the_state_and_the_step(master: str) -> None:
    under_way = threading.Event()
    joined = threading.Event()
    seen: list[bool] = []

    def each(_run: Any, step: int) -> None:
        if step == 3:
            under_way.set()
        # The two go on until the third is there.
        if 3 <= step < 200 and not joined.is_set():
            time.sleep(0.02)

    def late(run: Any, _step: int) -> None:
        joined.set()
        seen.append(run.is_newcomer)

    first = [begin(lambda seed=seed: train(master, seed, 260, each=each)) for seed in range(2)]
    assert under_way.wait(DEADLINE)
    weights, steps = train(master, 2, 260, each=late)
    others = [future.result(DEADLINE) for future in first]
    assert steps[0] > 3 and steps == list(range(steps[0], 260))
    assert seen == [True] + [False] * (len(steps) - 1)
    assert {weights} == {other for other, _ in others}


def test_a_weighted_average_is_the_weighted_mean(master: str) -> None:
    values = [np.random.default_rng(seed).normal(size=1000).astype(np.float32) for seed in range(3)]
    shares = [1.0, 7.0, 24.0]

    def peer(place: int) -> Any:
        mine = values[place].copy()
        with ringfold.Run(master, {"x": np.zeros(1, np.float32)}, peers_min=3) as run:
            for _ in run.steps(until=1):
                reduced = run.average(mine, weight=shares[place])
        assert reduced.worlds == (3,) and reduced.world_size == 3
        return mine

    results = together(*(lambda place=place: peer(place) for place in range(3)))
    mean = np.average(np.array(values, np.float64), axis=0, weights=shares)
    np.testing.assert_allclose(results[0], mean, rtol=1e-5, atol=1e-6)
    assert {result.tobytes() for result in results} == {results[0].tobytes()}


def test_alone_a_reduction_is_the_identity(master: str) -> None:
    into = np.zeros(5, np.float32)
    with ringfold.Run(master, {"x": np.zeros(1, np.float32)}, peers_min=1) as run:
        for step in run.steps(until=3):
            mine = np.arange(5, dtype=np.float32) + step
            assert run.average(mine, weight=0.0).worlds == (1,)
            assert run.sum([mine, mine.copy()]).worlds == (1, 1)
            run.reduce(mine, into=into)
            assert np.array_equal(mine, np.arange(5) + step) and np.array_equal(into, mine)
            assert run.world_size == 1
    assert run.revision == 3 and run.world_size == 0
    with pytest.raises(RuntimeError, match="the run is over"):
        run.average(into)


def test_several_tensors_are_reduced_in_one_call_in_place_or_into_others(master: str) -> None:
    def peer(me: int) -> None:
        with ringfold.Run(master, {"x": np.zeros(1, np.float32)}, max_in_flight=1 + 3 * me) as run:
            for _ in run.steps(until=1):
                many = [np.full(size, me + 1, np.float64) for size in range(1, 20)]
                assert run.average(tensor for tensor in many).worlds == (2,) * 19
                assert all((tensor == 1.5).all() for tensor in many)
                sends = [np.full(3, 10 * me, np.int32), np.full(3, me, np.uint8)]
                recvs = [np.zeros(3, np.int32), np.zeros(3, np.uint8)]
                run.reduce(sends, into=recvs, op=pccl.ReduceOp.MAX)
                assert (sends[0] == 10 * me).all() and (recvs[0] == 10).all() and (recvs[1] == 1).all()
                flying = run.reduce_async(many, tag=100)
                run.average(sends[0])
                assert flying.wait().world_size == 2 and (many[3] == 3.0).all()

    together(lambda: peer(0), lambda: peer(1))


@pytest.mark.parametrize("in_place", [True, False])
def test_if_a_peer_goes_between_two_tensors_all_agree_on_who_is_in_which(master: str, in_place: bool) -> None:
    def peer(me: int) -> tuple[list[bytes], tuple[int, ...]]:
        tensors = [np.full(1000, 10.0**me), np.full(10, 10.0**me, np.float32)]
        into = None if in_place else [np.zeros_like(tensor) for tensor in tensors]
        with ringfold.Run(master, {"x": np.zeros(1, np.float32)}, peers_min=3) as run:
            for _ in run.steps(until=1):
                if me == 2:
                    run.reduce(tensors[0], into=into and into[0])
                    return [], ()
                reduced = run.reduce(tensors, into=into)
        return [tensor.tobytes() for tensor in into or tensors], reduced.worlds

    one, other, _ = together(lambda: peer(0), lambda: peer(1), lambda: peer(2))
    assert one == other
    both, all_three = np.full(10, 11, np.float32).tobytes(), np.full(1000, 111.0).tobytes()
    if in_place:
        assert one == ([all_three, both], (3, 2))
    else:
        assert one == ([np.full(1000, 11.0).tobytes(), both], (2, 2))


def test_peers_that_disagree_get_an_error_that_says_so(master: str) -> None:
    def peer(size: int) -> None:
        with ringfold.Run(master, {"x": np.zeros(1, np.float32)}) as run:
            for _ in run.steps(until=1):
                run.average(np.zeros(size))

    for failed in [begin(lambda: peer(10)), begin(lambda: peer(12))]:
        with pytest.raises(pccl.PCCLError, match="waits in all-reduce .avg of 1[02] x float64., but"):
            failed.result(DEADLINE)


def test_a_condition_that_differs_between_peers_is_an_error_on_all_of_them(master: str) -> None:
    def peer(me: int) -> None:
        with ringfold.Run(master, {"x": np.zeros(1, np.float32)}, name=f"p{me}") as run:
            for step in run.steps(until=3):
                if step != 1 or me == 0:
                    run.average(np.zeros(5))

    for failed in [begin(lambda: peer(0)), begin(lambda: peer(1))]:
        with pytest.raises(pccl.PCCLError, match="p1 waits in update_topology.*p0 waits in"):
            failed.result(DEADLINE)


def test_a_group_that_waits_holds_no_other_group_up(master: str) -> None:
    def wait() -> None:
        with lonely:
            for _ in lonely.steps():
                raise AssertionError("it is alone")

    lonely = ringfold.Run(master, {"x": np.zeros(1, np.float32)}, peer_group=9)
    waiting = begin(wait)
    time.sleep(1.5)
    began = time.monotonic()
    # Whoever waits has to vote at each boundary of the others. It looks once in a second if it is on its own.
    train(master, 0, 50, peers_min=1)
    assert time.monotonic() - began < 15
    lonely.stop()
    waiting.result(DEADLINE)
    assert lonely.was_stopped


def test_after_the_last_step_all_peers_may_still_talk(master: str) -> None:
    def peer(me: float) -> float:
        score = np.array([me])
        with ringfold.Run(master, {"x": np.zeros(1, np.float32)}) as run:
            for _ in run.steps(until=2):
                pass
            assert run.revision == 2
            run.average(score)
            for _ in run.steps(until=4):
                run.average(score)
        return float(score[0])

    assert together(lambda: peer(1.0), lambda: peer(2.0)) == [1.5, 1.5]


def test_stop_ends_this_peer_at_the_boundary_and_the_others_go_on(master: str) -> None:
    joined = threading.Event()
    made: list[int] = []

    def each(_run: Any, step: int) -> None:
        if step < 200 and not joined.is_set():
            time.sleep(0.02)

    def stopping(run: Any, step: int) -> None:
        joined.set()
        made.append(step)
        if len(made) == 2:
            run.stop()
            assert run.was_stopped

    first = [begin(lambda seed=seed: train(master, seed, 220, each=each)) for seed in range(2)]
    _, steps = train(master, 2, 220, each=stopping)
    ended = [future.result(DEADLINE) for future in first]
    assert ended[0][0] == ended[1][0] and steps == made


def test_optimised_rings_change_nothing_but_the_ring(master: str) -> None:
    joined = threading.Event()

    def each(_run: Any, step: int) -> None:
        if step < 500 and not joined.is_set():
            time.sleep(0.02)

    first = [begin(lambda seed=seed: train(master, seed, 520, each=each, optimize=True)) for seed in range(2)]
    third = train(master, 2, 520, each=lambda run, step: joined.set(), optimize=True)
    ended = [third, *(future.result(DEADLINE) for future in first)]
    assert len({weights for weights, _ in ended}) == 1


def test_whoever_waits_in_vain_is_told_for_whom(master: str) -> None:
    with pytest.raises(TimeoutError, match="only 1 of 2 peers"):
        train(master, 0, 3, wait_timeout=0.5)


def test_a_peer_with_another_state_is_rejected_in_words_and_the_rest_go_on(master: str) -> None:
    def other() -> None:
        with ringfold.Run(master, {"weights": np.zeros(38, np.float32)}) as run:
            for _ in run.steps():
                raise AssertionError("it was let in")

    def each(_run: Any, step: int) -> None:
        if step == 2:
            under_way.set()
        if step >= 2 and not rejected.done():
            time.sleep(0.02)

    under_way = threading.Event()
    rejected: Future[Any] = Future()
    first = [begin(lambda seed=seed: train(master, seed, 300, each=each)) for seed in range(2)]
    assert under_way.wait(DEADLINE)
    rejected = begin(other)
    with pytest.raises(Rejected, match="'?weights.*another program"):
        rejected.result(DEADLINE)
    ended = [future.result(DEADLINE) for future in first]
    assert ended[0] == ended[1]


def test_a_peer_that_is_ahead_of_the_run_is_rejected_in_words(master: str) -> None:
    def each(_run: Any, step: int) -> None:
        if step >= 2 and not ahead.done():
            under_way.set()
            time.sleep(0.02)

    under_way = threading.Event()
    ahead: Future[Any] = Future()
    first = [begin(lambda seed=seed: train(master, seed, 300, each=each)) for seed in range(2)]
    assert under_way.wait(DEADLINE)
    ahead = begin(lambda: train(master, 7, 10_000, revision=5000))
    with pytest.raises(Rejected, match="revision 5000, ahead of the run"):
        ahead.result(DEADLINE)
    ended = [future.result(DEADLINE) for future in first]
    assert ended[0] == ended[1]


def test_a_checkpoint_is_resumed_at_its_revision(master: str) -> None:
    ended = together(lambda: train(master, 0, 104, revision=100), lambda: train(master, 1, 104, revision=100))
    assert ended[0] == ended[1] and ended[0][1] == [100, 101, 102, 103]


def test_a_run_whose_last_peer_said_goodbye_is_over_and_another_begins(master: str) -> None:
    for revision in (0, 5):
        ended = together(*(partial(train, master, seed, 8, revision=revision) for seed in range(2)))
        assert ended[0] == ended[1] and ended[0][1] == list(range(revision, 8))


def test_a_run_whose_peers_all_died_is_taken_up_from_a_checkpoint_when_that_is_said(
    master: str, spawn: Any
) -> None:
    dying = [spawn(PEER, master, seed, 4000, 0.02) for seed in range(2)]
    for peer in dying:
        peer.wait_for("step 8 ", DEADLINE)
    for peer in dying:
        peer.kill()
    silently = [begin(lambda seed=seed: train(master, seed, 8, revision=5)) for seed in range(2)]
    for future in silently:
        with pytest.raises(Rejected, match="strategy=SEND_ONLY") as rejected:
            future.result(DEADLINE)
        assert not rejected.value.is_retryable
    sends, receives = pccl.SharedStateSyncStrategy.SEND_ONLY, pccl.SharedStateSyncStrategy.RECEIVE_ONLY
    ended = together(
        lambda: train(master, 2, 8, revision=5, strategy=sends),
        lambda: train(master, 3, 8, strategy=receives),
    )
    assert ended[0] == ended[1] and ended[0][1] == [5, 6, 7]


def test_what_peers_may_differ_in_is_given_to_newcomers_once(master: str) -> None:
    def peer(me: int) -> tuple[float, float]:
        own = np.array([float(me)])
        with ringfold.Run(master, {"own": Unequal(own), "x": np.zeros(1)}) as run:
            first = None
            for step in run.steps(until=4):
                first = float(own[0]) if first is None else first
                own += 10 * (me + 1)
                assert step == 0 or run.synced.rx_bytes == 0
        assert first is not None
        return first, float(own[0])

    one, other = together(lambda: peer(0), lambda: peer(1))
    assert one[0] == other[0]
    assert other[1] - one[1] == 40


def test_a_state_may_be_descriptors_or_plain_memory(master: str) -> None:
    def peer(me: int) -> tuple[float, float, int]:
        values, numbers, memory = np.full(3, me), array("d", [me]), bytearray([me])
        state = [pccl.TensorInfo.from_numpy(values, "values"), {"numbers": numbers, "memory": [memory]}]
        with ringfold.Run(master, state) as run:
            for _ in run.steps(until=2):
                pass
        return float(values[0]), numbers[0], memory[0]

    one, other = together(lambda: peer(3), lambda: peer(4))
    assert one == other and one in [(3, 3, 3), (4, 4, 4)]


@pytest.mark.parametrize("state", [{}, {"lr": 0.1}, {"a": {"b": "text"}}, 3])
def test_a_state_without_tensors_is_refused_in_words(state: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="state|array"):
        ringfold.Run("127.0.0.1:1", state)


def test_no_master_is_an_error_after_the_attempts() -> None:
    with pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED"):
        train("127.0.0.1:9", 0, 1, connect_attempts=2)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


# Processes

PEER = """
import hashlib, pathlib, sys, time
import numpy as np, ringfold

master, seed, until, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
print("ready", flush=True)
while len(sys.argv) > 5 and not pathlib.Path(sys.argv[5]).exists():
    time.sleep(0.01)
chance = np.random.default_rng(seed)
weights = chance.normal(size=20_000).astype(np.float32)
try:
    with ringfold.Run(master, state={"weights": weights}, name=f"p{seed}") as run:
        print("joined", flush=True)
        for step in run.steps(until=until):
            gradient = weights - 3 + chance.normal(size=20_000).astype(np.float32)
            print(f"computes {step}", flush=True)
            time.sleep(pause)
            print(f"reduces {step}", flush=True)
            run.average(gradient)
            weights -= np.float32(0.1) * gradient
            print(f"step {step} {hashlib.sha256(weights).hexdigest()} of {run.world_size}", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
print(f"ended at {run.revision}, stopped: {run.was_stopped}", flush=True)
"""


def steps_of(output: str) -> dict[int, str]:
    """The hash after each step that a process has printed."""
    words = [line.split() for line in output.splitlines() if line.startswith("step ")]
    return {int(line[1]): line[2] for line in words}


def assert_same(*outputs: str) -> None:
    """No two processes have seen different weights after the same step."""
    all_steps = [steps_of(output) for output in outputs]
    for step in set[int]().union(*all_steps):
        assert len({steps[step] for steps in all_steps if step in steps}) == 1, f"step {step} differs"


def begin_together(spawn: Any, gate: Path, program: str, peers: list[tuple[Any, ...]]) -> list[Any]:
    """Processes that have all been started before any of them joins: a run is soon over."""
    children = [spawn(program, *arguments, gate) for arguments in peers]
    for child in children:
        child.wait_for("ready", DEADLINE)
    gate.touch()
    return children


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
    time.sleep(0.3)
    hasty.signal(signal.SIGTERM)
    assert "ended at 0, stopped: True" in hasty.succeed(20)
    assert "reduces 0" not in slow.output
    # The other one finishes its step alone, and waits for somebody; that is a wait as well.
    slow.wait_for("step 0 ", DEADLINE)
    time.sleep(0.5)
    slow.signal(signal.SIGTERM)
    assert "ended at 1, stopped: True" in slow.succeed(20)


def test_sigterm_before_a_peer_is_let_in_ends_it_at_once(master: str, spawn: Any) -> None:
    hasty, slow = spawn(PEER, master, 0, 5, 0.0), spawn(PEER, master, 1, 5, 60.0)
    hasty.wait_for("reduces 0", DEADLINE)
    slow.wait_for("computes 0", DEADLINE)
    pending = spawn(PEER, master, 2, 5, 0.0)
    pending.wait_for("ready", DEADLINE)
    time.sleep(1)
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


def test_a_handler_of_the_users_is_given_back_and_waits_on_other_threads_end_too(
    master: str, spawn: Any
) -> None:
    child = spawn(SIGNALS, master)
    child.wait_for("waiting", DEADLINE)
    time.sleep(0.5)
    child.signal(signal.SIGTERM)
    output = child.succeed(20)
    assert "thread ended by Stopped" in output and "over" in output


# torch


def test_a_module_and_its_optimizer_are_given_to_a_late_joiner(master: str) -> None:
    torch = pytest.importorskip("torch")
    under_way, joined = threading.Event(), threading.Event()

    def peer(seed: int) -> tuple[list[bytes], int]:
        with lock:
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        state = {"model": model, "optimizer": optimizer, "lr": torch.tensor(0.1), "mask": torch.ones(3) > 0}
        chance = torch.Generator().manual_seed(seed)
        first = -1
        with ringfold.Run(master, state=state) as run:
            for step in run.steps(until=150):
                first = step if first < 0 else first
                if seed == 2:
                    joined.set()
                elif step >= 3:
                    under_way.set()
                    time.sleep(0 if joined.is_set() else 0.03)
                x = torch.randn(16, 4, generator=chance)
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                run.average([p.grad for p in model.parameters()])
                optimizer.step()
        tensors = [
            *model.parameters(),
            *(optimizer.state[p][k] for p in model.parameters() for k in ("step", "exp_avg")),
        ]
        return [tensor.detach().numpy().tobytes() for tensor in tensors], first

    lock = threading.Lock()
    futures = [begin(lambda seed=seed: peer(seed)) for seed in range(2)]
    assert under_way.wait(DEADLINE)
    third = peer(2)
    others = [future.result(DEADLINE) for future in futures]
    assert third[1] > 3
    assert third[0] == others[0][0] == others[1][0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        ("Adam", {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True}),
        ("AdamW", {"lr": 0.1}),
        ("NAdam", {"lr": 0.1}),
        ("RAdam", {"lr": 0.1}),
        ("Adamax", {"lr": 0.1}),
        ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5}),
        ("Adadelta", {"lr": 0.1}),
        ("RMSprop", {"lr": 0.1, "momentum": 0.9, "centered": True}),
        ("Rprop", {"lr": 0.1}),
        ("ASGD", {"lr": 0.1}),
    ],
)
def test_a_prepared_optimizer_trains_as_one_that_begins_with_nothing(
    name: str, options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")

    def trained(prepare: bool) -> list[bytes]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        if prepare:
            before = [p.detach().clone() for p in model.parameters()]
            prepare_optimizer(optimizer)
            assert all(torch.equal(p, old) and p.grad is None for p, old in zip(model.parameters(), before))
            assert name == "SGD" or optimizer.state
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    assert trained(True) == trained(False)
