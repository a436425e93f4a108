"""Ranks that die, leave, or are interrupted: the others get an error that names the rank, and soon."""

from __future__ import annotations

import os
import signal
import time

import mscclpp
import pytest
from mscclpp import BaseError, Communicator, Error, ErrorCode, Host2HostSemaphore, Transport
from world import (
    DEADLINE,
    World,
    await_blocked,
    await_gone,
    await_reached,
    join,
    meet,
    others,
    rank,
    reach,
)

PROMPT = 10.0


def die_while_waited_for(what: str, transport: str) -> str:
    """Rank 1 is killed while the others wait for it."""
    group = join()
    connections = group.make_connection(others(), Transport[transport])
    semaphores = {
        peer: Host2HostSemaphore(semaphore) for peer, semaphore in group.make_semaphores(connections).items()
    }
    group.barrier()
    if rank() == 1:
        # Not before the others have left the barrier.
        for semaphore in semaphores.values():
            semaphore.wait(timeout=DEADLINE)
        os.kill(os.getpid(), signal.SIGKILL)
    semaphores[1].signal()
    try:
        if what == "barrier":
            group.barrier()
        elif what == "future":
            group.communicator.recv_memory(1).get()
        elif what == "semaphore":
            semaphores[1].wait(timeout=DEADLINE)
        else:
            # Rank 0 itself is fine, but the communicator is not.
            semaphores[2 if rank() == 0 else 0].wait(timeout=DEADLINE)
    except BaseError as error:
        # The other survivor must learn of rank 1 before it learns that this rank has left.
        reach("failed")
        await_reached("failed", 2 - rank())
        return f"{type(error).__name__} {getattr(error, 'code', '')!r} {error}"
    return "no error"


@pytest.mark.parametrize("transport", ["Ethernet", "SharedMemory"])
@pytest.mark.parametrize("what", ["barrier", "future", "semaphore", "another's semaphore"])
def test_a_killed_rank_is_named_quickly(world: World, what: str, transport: str) -> None:
    running = world.start(3, die_while_waited_for, what, transport)
    running.children[1].wait(DEADLINE)
    began = time.monotonic()
    for survivor in (0, 2):
        running.children[survivor].succeed(PROMPT)
    assert time.monotonic() - began < PROMPT
    running.children.pop(1)
    running.outcomes.pop(1)
    for said in running.results():
        assert "rank 1" in said, said


def leave_early() -> bool:
    """A rank that has done its part ends; what the others do among themselves goes on."""
    group = join()
    connections = group.make_connection(others(), Transport.Ethernet)
    semaphores = group.make_semaphores(connections)
    group.barrier()
    if rank() == 1:
        reach("leaving")
        return True
    await_gone("leaving", 1)
    peer = 2 - rank()
    one = Host2HostSemaphore(semaphores[peer])
    one.signal()
    one.wait(timeout=DEADLINE)
    assert group.communicator.failure() is None
    return True


def test_a_rank_that_leaves_does_not_disturb_the_others(world: World) -> None:
    assert world.run(3, leave_early, exits_fully=True) == [True] * 3


def be_interrupted(what: str) -> str:
    group = join()
    connections = group.make_connection(others(), Transport.Ethernet)
    semaphore = Host2HostSemaphore(group.make_semaphores(connections)[1 - rank()])
    if rank() == 1:
        try:
            group.barrier()
            signal.pause()
        except BaseError as error:
            return str(error)
        return ""
    group.barrier()
    print("waits", flush=True)
    try:
        if what == "future":
            group.communicator.recv_memory(1).get()
        else:
            semaphore.wait()
    except KeyboardInterrupt:
        return "interrupted"
    return "nothing came"


@pytest.mark.parametrize("what", ["future", "semaphore"])
def test_ctrl_c_ends_a_wait(world: World, what: str) -> None:
    running = world.start(2, be_interrupted, what)
    running.children[0].wait_for("waits", DEADLINE)
    running.children[0].wait_until_blocked()
    began = time.monotonic()
    running.children[0].signal(signal.SIGINT)
    running.children[0].succeed(PROMPT)
    assert time.monotonic() - began < PROMPT
    assert running.outcome(0) == "interrupted"
    running.children[1].kill()


def give_up() -> str:
    group = join()
    connections = group.make_connection(others(), Transport.SharedMemory)
    semaphore = Host2HostSemaphore(group.make_semaphores(connections)[1 - rank()])
    group.barrier()
    if rank() == 0:
        await_blocked("waits", 1)
        group.communicator.abort("the data is bad")
        await_reached("failed", 1)
        return ""
    try:
        reach("waits")
        semaphore.wait(timeout=DEADLINE)
    except Error as error:
        reach("failed")
        return f"{error.code.name}: {error}"
    return "no error"


def test_the_others_receive_the_reason_of_an_abort(world: World) -> None:
    said = world.run(2, give_up)[1]
    assert "the data is bad" in said, said


def never_meet() -> str:
    bootstrap = mscclpp.TcpBootstrap.create(1, 2)
    print("tries", flush=True)
    try:
        bootstrap.initialize("127.0.0.1:9", timeout_sec=DEADLINE)
    except KeyboardInterrupt:
        return "interrupted"
    return "met"


def test_ctrl_c_ends_a_rendezvous(world: World) -> None:
    running = world.start(1, never_meet)
    running.children[0].wait_for("tries", DEADLINE)
    running.children[0].wait_until_blocked()
    running.children[0].signal(signal.SIGINT)
    running.children[0].succeed(PROMPT)
    assert running.outcome(0) == "interrupted"


def wait_until_timeout() -> bool:
    bootstrap = meet()
    communicator = Communicator(bootstrap)
    bootstrap.barrier()
    if rank() == 0:
        future = communicator.recv_memory(1)
        began = time.monotonic()
        try:
            future.get(timeout=1.0)
        except Error as error:
            assert error.code is ErrorCode.Timeout and "rank 1" in str(error), error
        assert 0.9 < time.monotonic() - began < PROMPT
        reach("timed out")
        return True
    await_reached("timed out", 0)
    return True


def test_a_future_times_out(world: World) -> None:
    assert world.run(2, wait_until_timeout) == [True, True]
