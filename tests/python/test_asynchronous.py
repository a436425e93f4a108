"""All-reduces that go on while Python computes: handles, tags, and asyncio."""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from typing import Any

import pccl
import pytest
from peers import DEADLINE, begin, connected, together


def floats(*values: float) -> array[float]:
    return array("f", values)


def launch(peer: pccl.Communicator, data: Any, tag: int = 0) -> pccl.AsyncReduceHandle:
    return peer.all_reduce_async(data, data, tag=tag)


def test_a_handle_returns_its_result_again_and_again(master: str) -> None:
    with connected(master) as (a, b):
        one, other = floats(1), floats(2)
        handle = launch(a, one)
        assert not handle.done()
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.05)
        twin = launch(b, other)
        success, status, info = handle.wait()
        assert (success, status) == (True, 0) and type(status) is int and info.world_size == 2
        assert handle.done() and handle.error is None
        assert handle.wait() == (success, status, info) == handle.wait(timeout=0)
        assert twin.wait(timeout=DEADLINE)[0] and one == other == floats(3)


def test_many_tags_launched_in_any_order_all_come_to_their_end(master: str) -> None:
    with connected(master) as (a, b):
        data = [[floats(t) for t in range(20)] for _ in "ab"]
        mine = [launch(a, data[0][t], t) for t in range(20)]
        its = [launch(b, data[1][t], t) for t in reversed(range(20))]
        assert all(handle.wait()[0] for handle in [*reversed(mine), *its])
        assert [d.tolist() for d in data[0]] == [[2.0 * t] for t in range(20)]


def test_a_tag_in_flight_cannot_be_used_again(master: str) -> None:
    with connected(master) as (a, b):
        handle = launch(a, floats(1), 7)
        for again in (lambda: launch(a, floats(1), 7), lambda: a.all_reduce(floats(1), floats(1), tag=7)):
            with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*tag 7"):
                again()
        launch(b, floats(2), 7).wait()
        # It has ended, but its result was not asked for.
        with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*tag 7"):
            launch(a, floats(1), 7)
        assert handle.wait()[0]
        assert all(h.wait()[0] for h in [launch(a, floats(1), 7), launch(b, floats(1), 7)])


def test_a_fast_peer_may_use_a_tag_again_before_a_slow_one_has_awaited_it(master: str) -> None:
    with connected(master) as (a, b):
        slow = launch(a, floats(1), 3)
        assert launch(b, floats(1), 3).wait()[0]
        data = floats(5)
        ahead = launch(b, data, 3)
        time.sleep(0.05)
        assert slow.wait()[0] and launch(a, floats(6), 3).wait()[0] and ahead.wait()[0]
        assert data.tolist() == [11]


def test_votes_with_an_unawaited_handle_are_an_error(master: str) -> None:
    with connected(master) as (a, b):
        handle = launch(a, floats(1), 1)
        state = pccl.SharedState([pccl.TensorInfo("x", data=floats(1))])
        votes = a.update_topology, a.optimize_topology, lambda: a.sync_shared_state(state)
        for launched in (False, True):
            if launched:
                assert launch(b, floats(1), 1).wait()[0]
                while not handle.done():
                    time.sleep(0.001)
            for vote in votes:
                with pytest.raises(pccl.PCCLError) as caught:
                    vote()
                assert caught.value.result is pccl.Result.PENDING_ASYNC_OPS
        assert handle.wait()[0]
        together(a.update_topology, b.update_topology)


def test_a_handle_that_is_dropped_lets_its_operation_run_on(master: str) -> None:
    with connected(master) as (a, b):
        one, other = floats(1), floats(2)
        handle = launch(a, one, 4)
        del handle
        gc.collect()
        b.all_reduce(other, other, tag=4)
        assert other.tolist() == [3]
        # It has ended for b, and does so for a at about the same time; then its tag is free and nothing is pending.
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                again = launch(a, floats(5), 4)
                break
            except pccl.PCCLError as error:
                assert "tag 4" in str(error) and time.monotonic() < deadline
        assert one.tolist() == [3]
        assert launch(b, floats(6), 4).wait()[0] and again.wait()[0]
        together(a.update_topology, b.update_topology)


def test_handles_of_a_communicator_that_has_left_have_ended(master: str) -> None:
    with connected(master) as (a, b):
        data = floats(1)
        handle = launch(a, data, 2)
        waiting = begin(launch(a, floats(1), 3).wait)
        waiting.wait_until_blocked()
        a.leave()
        assert handle.done()
        for end in (handle.wait(), waiting.result(DEADLINE)):
            assert end[:2] == (False, pccl.Result.MASTER_CONNECTION_FAILED)
        assert handle.error is not None and not handle.error.is_retryable and data.tolist() == [1]


def test_a_handle_outlives_its_communicator(master: str) -> None:
    with connected(master) as peers:
        data = floats(1)
        handle = launch(peers[0], data)
        del peers[0]
        gc.collect()
        # The destructor has left the run.
        assert handle.wait()[0] is False and data.tolist() == [1]


def test_several_threads_may_wait_for_one_handle(master: str) -> None:
    with connected(master) as (a, b):
        handle = launch(a, floats(1))
        waiting = [begin(handle.wait) for _ in range(3)]
        for call in waiting:
            call.wait_until_blocked()
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            handle.wait(timeout=0.2)
        assert 0.15 < time.monotonic() - begun < 5
        assert launch(b, floats(2)).wait()[0]
        ends = [future.result(DEADLINE) for future in waiting]
        assert ends == [handle.wait()] * 3 and ends[0][0]


def test_handles_can_be_awaited_while_the_loop_goes_on(master: str) -> None:
    async def run(a: pccl.Communicator, b: pccl.Communicator) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        data = [floats(t) for t in range(10)]
        mine = [launch(a, d, t) for t, d in enumerate(data)]
        gathered = asyncio.gather(*mine)
        while ticks <= 5:
            await asyncio.sleep(0.01)
        assert not gathered.done()
        its = [launch(b, floats(t), t) for t in range(10)]
        for success, status, info in [*await gathered, *await asyncio.gather(*its)]:
            assert success and status == 0 and info.world_size == 2
        assert [d.tolist() for d in data] == [[2.0 * t] for t in range(10)]
        # Once more, of one that has ended.
        assert (await mine[0])[0]
        ticking.cancel()

    with connected(master) as (a, b):
        asyncio.run(run(a, b))


def test_an_await_can_be_cancelled_and_repeated(master: str) -> None:
    async def run(a: pccl.Communicator, b: pccl.Communicator) -> None:
        handle = launch(a, floats(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle, 0.1)
        assert launch(b, floats(1)).wait()[0]
        assert (await handle)[0]

    with connected(master) as (a, b):
        begun = time.monotonic()
        asyncio.run(run(a, b))
        assert time.monotonic() - begun < 10
