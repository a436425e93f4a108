"""What `ringfold.Run` promises of averages and other reductions."""

from __future__ import annotations

from typing import Any

import pytest
from peers import DEADLINE, begin, together

np = pytest.importorskip("numpy")
ringfold = pytest.importorskip("ringfold")
pccl = pytest.importorskip("pccl")


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


# Each order gives another sum.
UNEQUAL = np.array([1.0, 1e8, -1e8], np.float32)


@pytest.mark.parametrize("options", [{"reproducible": True}, {"integrity": "all"}])
def test_a_run_takes_what_reductions_promise(master: str, options: dict[str, Any]) -> None:
    """Its results are right; with ``reproducible`` quantised ones are refused, and peers that differ in either fail with words."""

    def peer(place: int) -> float:
        mine = np.full(1000, UNEQUAL[place], np.float32)
        with ringfold.Run(master, {"x": np.zeros(1, np.float32)}, peers_min=3, **options) as run:
            for _ in run.steps(until=1):
                run.sum(mine)
                if "reproducible" in options:
                    quantized = pccl.QuantizationOptions(pccl.DataType.UINT8)
                    with pytest.raises(pccl.PCCLError, match="cannot be reproducible"):
                        run.sum(mine.copy(), quantization=quantized)
        assert len(set(mine.tolist())) == 1
        return float(mine[0])

    sums = together(*(lambda place=place: peer(place) for place in range(3)))
    # The order is that of admission, which this test does not choose.
    possible = {
        float((UNEQUAL[a] + UNEQUAL[b]) + UNEQUAL[c]) for a, b, c in ((0, 1, 2), (0, 2, 1), (1, 2, 0))
    }
    assert len(set(sums)) == 1 and sums[0] in possible


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
    with pytest.raises(RuntimeError, match="the run has ended"):
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
def test_if_a_peer_leaves_between_two_tensors_all_agree_on_the_world_of_each(
    master: str, in_place: bool
) -> None:
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


def test_mismatched_reductions_are_an_error(master: str) -> None:
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


def test_peers_can_reduce_after_the_last_step(master: str) -> None:
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
