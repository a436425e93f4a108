"""Calls from any thread: other threads run while one waits, and concurrent calls do not disturb each other."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

import pccl
import pytest
from peers import DEADLINE, begin, connected, together


def counted_while(call: Callable[[], Any], until: Callable[[], Any]) -> int:
    """How far this thread counts while another one waits in a call, for a tenth of a second."""
    waiting = begin(call)
    waiting.wait_until_blocked()
    count = 0
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        count += 1
    assert not waiting.done(), "the call does not wait"
    until()
    waiting.result(DEADLINE)
    return count


def floats(*values: float) -> array[float]:
    return array("f", values)


def state() -> pccl.SharedState:
    return pccl.SharedState([pccl.TensorInfo("x", data=floats(1))])


def reduce(comm: pccl.Communicator, tag: int = 0) -> pccl.ReduceInfo:
    data = floats(1)
    return comm.all_reduce(data, data, tag=tag)


def many(comm: pccl.Communicator) -> pccl.ReduceInfo:
    data = floats(1)
    return comm.all_reduce_multiple_with_retry(
        [pccl.ReduceOpDescriptor(data, data, pccl.ReduceDescriptor(1))]
    )


CALLS: dict[str, Callable[[pccl.Communicator], Any]] = {
    "update_topology": lambda comm: comm.update_topology(),
    "are_peers_pending": lambda comm: comm.are_peers_pending(),
    "optimize_topology": lambda comm: comm.optimize_topology(),
    "all_reduce": reduce,
    "all_reduce_multiple_with_retry": many,
    "wait": lambda comm: comm.all_reduce_async(floats(1), floats(1)).wait(),
    "sync_shared_state": lambda comm: comm.sync_shared_state(state()),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_threads_run_while_one_waits_in(master: str, name: str) -> None:
    with connected(master) as (a, b):
        assert counted_while(lambda: CALLS[name](a), lambda: CALLS[name](b)) > 1000


def test_other_threads_run_while_one_connects_or_waits_for_a_master() -> None:
    node = pccl.MasterNode("127.0.0.1:0")
    node.run()
    first, second = pccl.Communicator(node.address), pccl.Communicator(node.address)
    first.connect()
    assert counted_while(second.connect, first.update_topology) > 1000
    first.leave()
    second.leave()
    assert counted_while(node.wait, node.interrupt) > 1000


def test_peers_are_asked_for_while_a_reduce_runs_on_another_thread(master: str) -> None:
    with connected(master) as peers:
        stop = threading.Event()

        def reduces(comm: pccl.Communicator) -> int:
            done = 0
            # The last one tells all that it is the last.
            while True:
                data = floats(float(stop.is_set()))
                comm.all_reduce(data, data, op=pccl.ReduceOp.MAX)
                done += 1
                if data[0]:
                    return done

        running = [begin(reduces, comm) for comm in peers]
        for _ in range(50):
            assert together(*(comm.are_peers_pending for comm in peers)) == [False, False]
        stop.set()
        counts = [future.result(DEADLINE) for future in running]
        assert counts[0] == counts[1] > 0


def test_peers_are_asked_for_while_a_reduce_waits(master: str) -> None:
    with connected(master) as (a, b):
        waiting = begin(reduce, a)
        waiting.wait_until_blocked()
        assert together(a.are_peers_pending, b.are_peers_pending) == [False, False]
        assert not waiting.done()
        reduce(b)
        assert waiting.result(DEADLINE).world_size == 2


def test_many_threads_reduce_under_tags_of_their_own(master: str) -> None:
    with connected(master) as peers:

        def work(comm: pccl.Communicator, tag: int) -> list[float]:
            results = []
            for step in range(20):
                data = floats(tag + step)
                comm.all_reduce(data, data, tag=tag)
                results.append(data[0])
            return results

        running = [(tag, begin(work, comm, tag)) for tag in range(6) for comm in peers]
        for tag, future in running:
            assert future.result(DEADLINE) == [2.0 * (tag + step) for step in range(20)]


def test_leaving_on_one_thread_ends_the_calls_of_others(master: str) -> None:
    with connected(master) as (a, _):
        waiting = [begin(reduce, a, tag) for tag in range(3)] + [begin(a.are_peers_pending)]
        for call in waiting:
            call.wait_until_blocked()
        begun = time.monotonic()
        a.leave()
        for future in waiting:
            error = future.exception(DEADLINE)
            assert isinstance(error, pccl.PCCLError), error
            assert error.result is pccl.Result.MASTER_CONNECTION_FAILED and not error.is_retryable
        assert time.monotonic() - begun < 20


def test_leaving_ends_a_connect_that_waits_for_admission(master: str) -> None:
    with pccl.Communicator(master) as first:
        first.connect()
        second = pccl.Communicator(master)
        connecting = begin(second.connect)
        connecting.wait_until_blocked()
        second.leave()
        error = connecting.exception(0.9)
        assert isinstance(error, pccl.PCCLError) and "closed" in str(error)
