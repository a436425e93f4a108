"""What `ringfold.Run` promises of steps, of peers that join, stop or are rejected, and of the state they share."""

from __future__ import annotations

import re
import signal
import threading
import time
from array import array
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from elastic_runs import train
from peers import DEADLINE, begin, outcomes, together

np = pytest.importorskip("numpy")
ringfold = pytest.importorskip("ringfold")
pccl = pytest.importorskip("pccl")

from ringfold.elastic import StateRejected, Unequal


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
        # The two go on until the third has joined.
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


def test_a_waiting_peer_group_does_not_delay_another(master: str) -> None:
    def wait() -> None:
        with lonely:
            for _ in lonely.steps():
                raise AssertionError("it is alone")

    lonely = ringfold.Run(master, {"x": np.zeros(1, np.float32)}, peer_group=9)
    waiting = begin(wait)
    waiting.wait_until_blocked()
    began = time.monotonic()
    # A waiting peer has to vote at each boundary of the others. Alone, it polls once a second.
    train(master, 0, 50, peers_min=1)
    assert time.monotonic() - began < 15
    lonely.stop()
    waiting.result(DEADLINE)
    assert lonely.was_stopped


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


def test_a_wait_for_peers_times_out_with_the_number_of_peers(master: str) -> None:
    with pytest.raises(TimeoutError, match="waiting for 2 peers: only 1"):
        train(master, 0, 3, wait_timeout=0.5)


def test_a_peer_with_another_state_is_rejected_and_the_others_go_on(master: str) -> None:
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
    with pytest.raises(StateRejected, match="'?weights.*same program version"):
        rejected.result(DEADLINE)
    ended = [future.result(DEADLINE) for future in first]
    assert ended[0] == ended[1]


def test_a_state_of_another_shape_or_type_is_rejected_with_both_layouts(master: str) -> None:
    def peer(weights: Any) -> int:
        with ringfold.Run(master, {"model": {"weights": weights}}) as run:
            for _ in run.steps(until=1):
                pass
        return int(run.revision)

    for mine, other, text in (
        (
            np.zeros((2, 2), np.float32),
            np.zeros(4, np.float32),
            r"float32\[(4|2,2)\], but this peer has model.weights float32\[(4|2,2)\]",
        ),
        (
            np.zeros(2, np.int32),
            np.zeros(2, np.float32),
            r"(int|float)32\[2\], but this peer has model.weights (int|float)32\[2\]",
        ),
    ):
        ends = outcomes(partial(peer, mine), partial(peer, other))
        rejected = [end for end in ends if isinstance(end, StateRejected)]
        assert rejected, ends
        assert re.search("expected model.weights " + text, str(rejected[0])), rejected


def test_steps_within_steps_are_an_error_that_says_so(master: str) -> None:
    with ringfold.Run(master, {"x": np.zeros(1)}, peers_min=1) as run:
        for _ in run.steps(until=1):
            with pytest.raises(RuntimeError, match="one loop over its steps"):
                next(run.steps())
        # The first loop is over.
        assert list(run.steps(until=3)) == [1, 2]


def test_equal_names_and_replaced_tensors_are_warnings(master: str, caplog: pytest.LogCaptureFixture) -> None:
    def peer() -> None:
        state = {"deep": {"x": np.zeros(1)}, "y": np.zeros(1)}
        with ringfold.Run(master, state, name="twin") as run:
            for step in run.steps(until=4):
                state["y"] += 1
                if step:
                    state["deep"]["x"] = state["deep"]["x"] + 1

    together(peer, peer)
    assert "2 peers are named 'twin'" in caplog.text
    assert caplog.text.count("state 'deep.x' is another tensor than before") == 2 and "'y'" not in caplog.text


def test_the_master_is_that_of_the_environment(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGFOLD_MASTERS", raising=False)
    with pytest.raises(pccl.PCCLError, match="no master: give its address, or set RINGFOLD_MASTERS"):
        ringfold.Run(state={"x": np.zeros(1)})
    monkeypatch.setenv("RINGFOLD_MASTERS", master)
    with ringfold.Run(state={"x": np.zeros(1)}, peers_min=1) as run:
        assert list(run.steps(until=2)) == [0, 1]
    with pccl.Communicator() as comm:
        comm.connect()
        assert comm.address == master and comm.world_size == 1


def test_a_wait_is_a_warning_after_5_s_and_then_at_doubling_intervals(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringfold.elastic import wait_notice

    now = [100.0]
    monkeypatch.setattr(wait_notice.time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", "ringfold"):
        notice = wait_notice.WaitNotice()
        for _ in range(420):
            notice.log("waiting for %s", "b")
            now[0] += 0.1
    assert [record.levelname for record in caplog.records] == ["INFO"] + ["WARNING"] * 4
    assert [record.args[-1] for record in caplog.records] == pytest.approx([0, 5, 10, 20, 40], abs=0.2)


def test_a_peer_ahead_of_the_run_is_rejected(master: str) -> None:
    def each(_run: Any, step: int) -> None:
        if step >= 2 and not ahead.done():
            under_way.set()
            time.sleep(0.02)

    under_way = threading.Event()
    ahead: Future[Any] = Future()
    first = [begin(lambda seed=seed: train(master, seed, 300, each=each)) for seed in range(2)]
    assert under_way.wait(DEADLINE)
    ahead = begin(lambda: train(master, 7, 10_000, revision=5000))
    with pytest.raises(StateRejected, match="revision 5000, ahead of the run"):
        ahead.result(DEADLINE)
    ended = [future.result(DEADLINE) for future in first]
    assert ended[0] == ended[1]


def test_a_checkpoint_is_resumed_at_its_revision(master: str) -> None:
    ended = together(lambda: train(master, 0, 104, revision=100), lambda: train(master, 1, 104, revision=100))
    assert ended[0] == ended[1] and ended[0][1] == [100, 101, 102, 103]


def test_a_new_run_begins_after_the_last_peer_left(master: str) -> None:
    for revision in (0, 5):
        ended = together(*(partial(train, master, seed, 8, revision=revision) for seed in range(2)))
        assert ended[0] == ended[1] and ended[0][1] == list(range(revision, 8))


def test_unequal_state_is_given_to_newcomers_once(master: str) -> None:
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


def test_a_state_can_be_descriptors_or_plain_memory(master: str) -> None:
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
def test_a_state_without_tensors_is_rejected(state: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="state|array"):
        ringfold.Run("127.0.0.1:1", state)


def test_no_master_is_an_error_after_the_attempts() -> None:
    with pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED"):
        train("127.0.0.1:9", 0, 1, connect_attempts=2)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"wait_timeout": -1}, "invalid wait_timeout -1"),
        ({"revision": 2**70}, "invalid revision"),
        ({"revision": -1}, "invalid revision -1"),
        ({"connect_attempts": 0}, "invalid connect_attempts 0"),
        ({"max_in_flight": 0}, "invalid max_in_flight 0"),
        ({"peer_group": -1}, "invalid peer_group -1"),
        ({"p2p_connection_pool_size": 2**16}, "invalid p2p_connection_pool_size"),
        ({"site": 2**32}, "invalid site"),
        ({"listen_ports": (1, 70_000)}, "invalid listen_ports 70000"),
        ({"connect_timeout": 1e300}, r"invalid connect_timeout 1e\+300"),
    ],
)
def test_a_run_refuses_numbers_that_it_cannot_use_by_their_names(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ringfold.Run("127.0.0.1:9", [bytearray(4)], **wrong)
