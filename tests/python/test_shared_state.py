"""The shared state from Python: revisions, strategies, newcomers, checkpoints."""

from __future__ import annotations

from array import array
from typing import Any

import pccl
import pytest
from peers import DEADLINE, begin, connected, join, outcomes, together

Strategy = pccl.SharedStateSyncStrategy
POPULAR, RECEIVE, SEND = Strategy.ENFORCE_POPULAR, Strategy.RECEIVE_ONLY, Strategy.SEND_ONLY


def state_of(revision: int, **tensors: Any) -> pccl.SharedState:
    state = pccl.SharedState([pccl.TensorInfo(name=name, data=data) for name, data in tensors.items()])
    state.revision = revision
    return state


def floats(*values: float) -> array[float]:
    return array("f", values)


def moved(info: Any) -> tuple[int, int]:
    assert isinstance(info, pccl.SharedStateSyncInfo), info
    return info.tx_bytes, info.rx_bytes


def test_what_most_peers_hold_wins_and_only_that_is_moved(master: str) -> None:
    with connected(master, 3) as peers:
        data = [(floats(1, 2), floats(7)), (floats(1, 2), floats(7)), (floats(1, 3), floats(7))]
        states = [state_of(0, x=x, y=y) for x, y in data]
        infos = together(*(lambda p=p, s=s: p.sync_shared_state(s) for p, s in zip(peers, states)))
        assert [x.tolist() for x, _ in data] == [[1, 2]] * 3
        assert moved(infos[2]) == (0, 8) and sum(info.tx_bytes for info in infos) == 8
        assert infos[0].rx_bytes == infos[1].rx_bytes == 0
        assert [state.revision for state in states] == [0, 0, 0]
        # The next one is r + 1; equal content costs nothing.
        for state in states:
            state.push_revision()
        infos = together(*(lambda p=p, s=s: p.sync_shared_state(s) for p, s in zip(peers, states)))
        assert [moved(info) for info in infos] == [(0, 0)] * 3


def test_a_lone_peer_syncs_if_its_revision_is_legal(master: str) -> None:
    with pccl.Communicator(master, name="alone") as comm:
        comm.connect()
        x = floats(1)
        for revision in (0, 1, 2):
            assert moved(comm.sync_shared_state(state_of(revision, x=x))) == (0, 0)
        for wrong in (2, 4, 0):
            with pytest.raises(pccl.PCCLError, match="sync_shared_state"):
                comm.sync_shared_state(state_of(wrong, x=x))
        state = state_of(3, x=x)
        comm.sync_shared_state(state)
        assert state.revision == 3


def test_the_first_revision_is_that_of_the_checkpoint(master: str) -> None:
    with connected(master) as (a, b):
        states = [state_of(41, x=floats(1)), state_of(41, x=floats(1))]
        together(lambda: a.sync_shared_state(states[0]), lambda: b.sync_shared_state(states[1]))
        assert [state.revision for state in states] == [41, 41]
        for state in states:
            state.push_revision()
        together(lambda: a.sync_shared_state(states[0]), lambda: b.sync_shared_state(states[1]))
        assert [state.revision for state in states] == [42, 42]


def test_a_revision_too_far_ahead_is_rejected_by_its_name(master: str) -> None:
    with connected(master) as (a, b):
        together(
            lambda: a.sync_shared_state(state_of(0, x=floats(1))),
            lambda: b.sync_shared_state(state_of(0, x=floats(1))),
        )
        ahead = state_of(5, x=floats(9))
        fine, error = outcomes(
            lambda: a.sync_shared_state(state_of(1, x=floats(2))), lambda: b.sync_shared_state(ahead)
        )
        assert moved(fine) == (0, 0)
        assert isinstance(error, pccl.PCCLError) and "REVISION_INCREMENT_VIOLATION" in str(error)
        assert error.result is pccl.Result.SHARED_STATE_SYNC_FAILED and not error.is_retryable
        assert ahead.revision == 5


def test_a_late_joiner_is_given_content_and_revision(master: str) -> None:
    with connected(master) as (a, b):
        data = [floats(0, 0), floats(0, 0)]
        states = [state_of(0, x=data[0]), state_of(0, x=data[1])]
        for step in range(4):
            for x, state in zip(data, states):
                x[0] += step
                state.revision = step
            together(lambda: a.sync_shared_state(states[0]), lambda: b.sync_shared_state(states[1]))
        late = pccl.Communicator(master, name="late")
        joining = begin(join, late, 3)
        together(*(lambda c=c: vote_until(c, 3) for c in (a, b)))
        joining.result(DEADLINE)
        x = floats(-1, -1)
        newcomer = state_of(0, x=x)
        for state in states:
            state.push_revision()
        infos = together(
            lambda: a.sync_shared_state(states[0]),
            lambda: b.sync_shared_state(states[1]),
            lambda: late.sync_shared_state(newcomer),
        )
        assert newcomer.revision == 4 and x == data[0] and moved(infos[2]) == (0, 8)
        # Again at the same revision: that succeeds without a new revision.
        infos = together(
            lambda: a.sync_shared_state(states[0]),
            lambda: b.sync_shared_state(states[1]),
            lambda: late.sync_shared_state(newcomer),
        )
        assert [moved(info) for info in infos] == [(0, 0)] * 3
        late.leave()


def vote_until(comm: pccl.Communicator, world: int) -> None:
    while comm.world_size < world:
        comm.update_topology()


def test_a_receive_only_peer_gets_the_state_of_a_send_only_peer(master: str) -> None:
    with connected(master, 3) as peers:
        data = [floats(1), floats(2), floats(2)]
        states = [state_of(0, x=x) for x in data]
        ways = [SEND, RECEIVE, RECEIVE]
        infos = together(
            *(lambda p=p, s=s, w=w: p.sync_shared_state(s, w) for p, s, w in zip(peers, states, ways))
        )
        assert [x.tolist() for x in data] == [[1]] * 3 and infos[0].rx_bytes == 0
        assert infos[1].rx_bytes == infos[2].rx_bytes == 4
        # By keyword, and without a sender.
        for error in outcomes(
            *(lambda p=p, s=s: p.sync_shared_state(s, strategy=RECEIVE) for p, s in zip(peers, states))
        ):
            assert isinstance(error, pccl.PCCLError), error
            assert error.result is pccl.Result.NO_SHARED_STATE_AVAILABLE and error.is_retryable


def test_two_send_only_peers_with_different_states_are_rejected(master: str) -> None:
    with connected(master) as (a, b):
        ends = outcomes(
            lambda: a.sync_shared_state(state_of(0, x=floats(1)), SEND),
            lambda: b.sync_shared_state(state_of(0, x=floats(2)), SEND),
        )
        errors = [end for end in ends if isinstance(end, pccl.PCCLError)]
        assert len(errors) == 1 and errors[0].result is pccl.Result.SHARED_STATE_SYNC_FAILED
        assert "was elected instead" in str(errors[0])


def test_strategies_that_do_not_go_together_are_rejected(master: str) -> None:
    with connected(master) as (a, b):
        popular, other = outcomes(
            lambda: a.sync_shared_state(state_of(0, x=floats(1)), POPULAR),
            lambda: b.sync_shared_state(state_of(0, x=floats(1)), RECEIVE),
        )
        assert moved(popular) == (0, 0)
        assert isinstance(other, pccl.PCCLError) and "strategy" in str(other)


@pytest.mark.parametrize(
    "its",
    [{"y": floats(1, 2)}, {"x": floats(1)}, {"x": array("i", [1, 2])}, {"x": floats(1, 2), "z": floats()}],
    ids=["key", "count", "type", "more"],
)
def test_a_layout_that_differs_is_rejected_and_named(master: str, its: dict[str, Any]) -> None:
    with connected(master, 3) as peers:
        states = [state_of(0, x=floats(1, 2)), state_of(0, x=floats(1, 2)), state_of(0, **its)]
        ends = outcomes(*(lambda p=p, s=s: p.sync_shared_state(s) for p, s in zip(peers, states)))
        assert moved(ends[0]) == moved(ends[1]) == (0, 0)
        assert isinstance(ends[2], pccl.PCCLError) and "layout" in str(ends[2])
        assert not ends[2].is_retryable


def test_contents_that_may_differ_are_given_to_newcomers_alone(master: str) -> None:
    def state(revision: int, x: Any, own: Any) -> pccl.SharedState:
        made = pccl.SharedState(
            [pccl.TensorInfo("x", data=x), pccl.TensorInfo("own", data=own, allow_content_inequality=True)]
        )
        made.revision = revision
        return made

    with connected(master) as (a, b):
        owns = [floats(1), floats(1)]
        states = [state(0, floats(5), own) for own in owns]
        together(lambda: a.sync_shared_state(states[0]), lambda: b.sync_shared_state(states[1]))
        owns[1][0] = 2
        for each in states:
            each.push_revision()
        infos = together(lambda: a.sync_shared_state(states[0]), lambda: b.sync_shared_state(states[1]))
        assert [moved(info) for info in infos] == [(0, 0)] * 2 and [own[0] for own in owns] == [1, 2]
        late = pccl.Communicator(master, name="late")
        joining = begin(join, late, 3)
        together(*(lambda c=c: vote_until(c, 3) for c in (a, b)))
        joining.result(DEADLINE)
        own = floats(-1)
        newcomer = state(0, floats(0), own)
        for each in states:
            each.push_revision()
        together(
            lambda: a.sync_shared_state(states[0]),
            lambda: b.sync_shared_state(states[1]),
            lambda: late.sync_shared_state(newcomer),
        )
        assert own[0] in (1, 2) and newcomer.revision == 2 and [own[0] for own in owns] == [1, 2]
        late.leave()


def test_tied_tensors_are_one_memory_under_two_names(master: str) -> None:
    with connected(master) as (a, b):
        tied, twin = floats(1, 2), floats(3, 4)
        together(
            lambda: a.sync_shared_state(state_of(0, embed=tied, head=tied), SEND),
            lambda: b.sync_shared_state(state_of(0, embed=twin, head=twin), RECEIVE),
        )
        assert twin == tied == floats(1, 2)
        view = memoryview(bytearray(16))
        for one, other in ((view[:8], view[4:12]), (view[:8], view[:4])):
            with pytest.raises(ValueError, match="overlap"):
                a.sync_shared_state(state_of(1, one=one, other=other))


def test_parameters_of_a_model_are_written_in_place(master: str) -> None:
    torch = pytest.importorskip("torch")
    with connected(master) as peers:
        models = [torch.nn.Linear(3, 2) for _ in peers]
        addresses = [[p.data_ptr() for p in model.parameters()] for model in models]
        states = [
            pccl.SharedState([pccl.TensorInfo.from_torch(p, name) for name, p in model.named_parameters()])
            for model in models
        ]
        together(
            lambda: peers[0].sync_shared_state(states[0], SEND),
            lambda: peers[1].sync_shared_state(states[1], RECEIVE),
        )
        for one, other in zip(models[0].parameters(), models[1].parameters()):
            assert torch.equal(one, other) and other.requires_grad
        assert [[p.data_ptr() for p in model.parameters()] for model in models] == addresses


def test_an_empty_state_and_empty_tensors_are_agreed_on(master: str) -> None:
    with connected(master) as (a, b):
        together(lambda: a.sync_shared_state(state_of(0)), lambda: b.sync_shared_state(state_of(0)))
        together(
            lambda: a.sync_shared_state(state_of(1, none=floats())),
            lambda: b.sync_shared_state(state_of(1, none=floats())),
        )


@pytest.mark.parametrize("revision", [-1, 1 << 64, "a", 1.5])
def test_revisions_are_whole_numbers(master: str, revision: Any) -> None:
    with pccl.Communicator(master) as comm:
        comm.connect()
        state = state_of(0, x=floats(1))
        state.revision = revision
        with pytest.raises(ValueError, match="revision"):
            comm.sync_shared_state(state)
        with pytest.raises(TypeError, match="SharedState"):
            comm.sync_shared_state([floats(1)])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="strategy"):
            comm.sync_shared_state(state_of(0), 1)  # type: ignore[arg-type]


def test_another_run_begins_anew_when_all_have_said_goodbye(master: str) -> None:
    for content in (1.0, 2.0):
        with connected(master) as peers:
            states = [state_of(0, x=floats(content)) for _ in peers]
            for revision in range(3):
                together(
                    *(lambda p=p, s=s: p.sync_shared_state(s) for p, s in zip(peers, states, strict=True))
                )
                assert [s.revision for s in states] == [revision, revision]
                for state in states:
                    state.push_revision()


def test_a_tensor_that_was_moved_is_found_where_it_lies_now(master: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4)
    with connected(master, 1) as (alone,):
        state = pccl.SharedState([pccl.TensorInfo.from_torch(tensor, "x")])
        before = tensor.data_ptr()
        tensor.resize_(1_000_000).fill_(3.0)
        assert tensor.data_ptr() != before
        alone.sync_shared_state(state)
        assert (state.infos[0].numel, state.infos[0].data_ptr) == (1_000_000, tensor.data_ptr())


def test_a_sync_beside_collectives(master: str) -> None:
    with connected(master) as (a, b):
        first, second = floats(1, 2), floats(3, 4)
        syncing = begin(a.sync_shared_state, state_of(0, x=first), SEND, beside_collectives=True)
        syncing.wait_until_blocked()
        # It waits for the other peer, and meanwhile reduces are made.
        for _ in range(3):
            values = [floats(1, 1), floats(2, 2)]
            together(*(lambda p=p, v=v: p.all_reduce(v, v) for p, v in zip((a, b), values)))
            assert [v.tolist() for v in values] == [[3, 3]] * 2
        # A plain one is refused while a reduce is in flight, and this one is not.
        handle = b.all_reduce_async(values[1], values[1])
        with pytest.raises(pccl.PendingAsyncOps):
            b.sync_shared_state(state_of(0, x=second), RECEIVE)
        b.sync_shared_state(state_of(0, x=second), RECEIVE, beside_collectives=True)
        assert moved(syncing.result()) == (8, 0) and second.tolist() == [1, 2]
        a.all_reduce(values[0], values[0])
        assert handle.wait()[0]


def test_all_peers_see_the_same_members_after_the_same_operation(master: str) -> None:
    lone = pccl.Communicator(master)
    assert lone.members() == ()
    with connected(master, 3) as peers:
        lists = [peer.members() for peer in peers]
        orders = {tuple(member.name for member in members) for members in lists}
        assert len(orders) == 1 and sorted(*orders) == sorted(peer.name for peer in peers)
        own = [next(member.name for member in members if member.is_self) for members in lists]
        assert own == [peer.name for peer in peers]
        peers[1].leave()
        values = [floats(1), floats(2)]
        left = [peers[0], peers[2]]
        together(*(lambda p=p, v=v: reduced(p, v) for p, v in zip(left, values)))
        orders = {tuple(member.name for member in peer.members()) for peer in left}
        assert len(orders) == 1 and sorted(*orders) == sorted(peer.name for peer in left)


def reduced(peer: pccl.Communicator, values: Any) -> None:
    """Reduces with the peers that are left."""
    for _ in range(10):
        try:
            peer.all_reduce(values, values)
        except pccl.PCCLError as error:
            assert error.is_retryable, error
        else:
            return
    raise AssertionError("never reduced")
