"""Ctrl-C and other signals while a call blocks: it ends within a second, and the others go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pccl
import pytest
from child import Child, Spawn
from peers import DEADLINE, begin

# The child is "child"; the test is the peer that does not take part.
PEER = """
import signal, sys
from array import array
import pccl
where, address = sys.argv[1:]
one = array("f", [1])
flags = []
def flag(*_):
    flags.append(1)
    print("flag", len(flags), flush=True)
signal.signal(signal.SIGUSR1, flag)
comm = pccl.Communicator(address, name="child")
state = pccl.SharedState([pccl.TensorInfo("x", data=one)])
many = [pccl.ReduceOpDescriptor(one, one, pccl.ReduceDescriptor(1))]
if where == "connect":
    print("blocks", flush=True)
comm.connect()
while comm.world_size < 2:
    comm.update_topology()
handle = comm.all_reduce_async(one, one) if where.startswith("handle") else None
calls = {
    "connect": comm.update_topology,
    "update_topology": comm.update_topology,
    "are_peers_pending": comm.are_peers_pending,
    "optimize_topology": comm.optimize_topology,
    "all_reduce": lambda: comm.all_reduce(one, one),
    "many": lambda: comm.all_reduce_multiple_with_retry(many),
    "handle": lambda: handle.wait(),
    "handle again": lambda: handle.wait(),
    "sync": lambda: comm.sync_shared_state(state),
}
try:
    print("blocks", flush=True)
    print("ended", calls[where](), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if where != "handle again":
        raise
    print("again", flush=True)
    print("ended", handle.wait()[0], one.tolist(), flush=True)
print("flags", len(flags), flush=True)
"""
CALLS = "update_topology are_peers_pending optimize_topology all_reduce many handle sync".split()

# A tenth of a second is usual; a busy machine gets more.
PROMPT = 5.0


@pytest.fixture
def ours(master: str) -> pccl.Communicator:
    comm = pccl.Communicator(master, name="ours")
    comm.connect()
    return comm


def blocked(spawn: Spawn, ours: pccl.Communicator, master: str, where: str) -> Child:
    """A child that is blocked in a call until the test takes part."""
    child = spawn(PEER, where, master)
    if where == "connect":
        child.wait_for("blocks", DEADLINE)
    else:
        while ours.world_size < 2:
            ours.update_topology()
        child.wait_for("blocks", DEADLINE)
    child.wait_until_blocked()
    return child


def interrupt(child: Child, line: str) -> float:
    """Ctrl-C; how long it took until the child says so."""
    begun = time.monotonic()
    child.signal(signal.SIGINT)
    child.wait_for(line, DEADLINE)
    return time.monotonic() - begun


@pytest.mark.parametrize("where", ["connect", *CALLS])
def test_ctrl_c_interrupts(spawn: Spawn, ours: pccl.Communicator, master: str, where: str) -> None:
    child = blocked(spawn, ours, master, where)
    assert interrupt(child, "KeyboardInterrupt" if where == "connect" else "interrupted") < PROMPT
    assert child.wait(DEADLINE) in (130, -signal.SIGINT)
    assert child.output.count("Traceback") == 1 and "PCCLError" not in child.output
    # The others go on without it.
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            ours.update_topology()
            if ours.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) == 1:
                break
        except pccl.PCCLError as error:
            assert error.is_retryable, error
        assert time.monotonic() < deadline
    ours.leave()


def test_an_interrupted_wait_for_a_handle_can_be_repeated(
    spawn: Spawn, ours: pccl.Communicator, master: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        child = blocked(spawn, ours, master, "handle again")
        assert interrupt(child, "again") < PROMPT
        if not child.output.count("ended"):
            break
        # Only an eviction may end the wait: on a busy machine the child may be silent for too long.
        assert "child was silent for too long" in capfd.readouterr().err, child.output
        ours.update_topology()
    else:
        pytest.fail("the master has evicted the child three times")
    data = memoryview(bytearray(b"\0\0\0@")).cast("f")
    ours.all_reduce(data, data)
    assert child.succeed(DEADLINE).splitlines()[-2:] == ["ended True [3.0]", "flags 0"]
    ours.leave()


@pytest.mark.parametrize("where", ["update_topology", "all_reduce", "handle", "sync"])
def test_a_handler_that_sets_a_flag_does_not_disturb_the_call(
    spawn: Spawn, ours: pccl.Communicator, master: str, where: str
) -> None:
    child = blocked(spawn, ours, master, where)
    for count in range(1, 4):
        child.signal(signal.SIGUSR1)
        child.wait_for(f"flag {count}", DEADLINE)
    child.wait_until_blocked()
    assert "ended" not in child.output
    data = memoryview(bytearray(b"\0\0\0@")).cast("f")
    calls: dict[str, Callable[[], object]] = {
        "update_topology": ours.update_topology,
        "all_reduce": lambda: ours.all_reduce(data, data),
        "handle": lambda: ours.all_reduce(data, data),
        "sync": lambda: ours.sync_shared_state(pccl.SharedState([pccl.TensorInfo("x", data=data)])),
    }
    calls[where]()
    assert "flags 3" in child.succeed(DEADLINE)
    ours.leave()


MASTER = """
import pccl
master = pccl.MasterNode("127.0.0.1:0")
master.run()
try:
    print("blocks", flush=True)
    master.wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    master.interrupt()
    master.wait()
"""


def test_ctrl_c_interrupts_the_wait_for_a_master(spawn: Spawn) -> None:
    child = spawn(MASTER)
    child.wait_for("blocks", DEADLINE)
    assert interrupt(child, "interrupted") < PROMPT
    assert child.succeed(DEADLINE).split() == ["blocks", "interrupted"]


NO_MASTER = """
import pccl
try:
    print("blocks", flush=True)
    pccl.Communicator("127.0.0.1:1").connect(n_attempts=60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_interrupts_attempts_to_connect(spawn: Spawn) -> None:
    child = spawn(NO_MASTER)
    child.wait_for("blocks", DEADLINE)
    child.wait_until_blocked()
    assert interrupt(child, "interrupted") < PROMPT
    child.succeed(DEADLINE)


LOOP = """
import asyncio, sys
from array import array
import pccl
comm = pccl.Communicator(sys.argv[2], name="child")
comm.connect()
while comm.world_size < 2:
    comm.update_topology()
async def main():
    handle = comm.all_reduce_async(array("f", [1]), array("f", [1]))
    print("blocks", flush=True)
    await handle
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_loop_that_awaits(spawn: Spawn, ours: pccl.Communicator, master: str) -> None:
    child = spawn(LOOP, "-", master)
    while ours.world_size < 2:
        ours.update_topology()
    child.wait_for("blocks", DEADLINE)
    child.wait_until_blocked()
    assert interrupt(child, "interrupted") < PROMPT
    assert child.succeed(DEADLINE).split() == ["blocks", "interrupted"]
    ours.leave()


def test_the_exception_of_any_handler_ends_the_call(ours: pccl.Communicator, master: str) -> None:
    other = pccl.Communicator(master)
    joining = begin(other.connect)
    while ours.world_size < 2:
        ours.update_topology()
    joining.result(DEADLINE)

    def handler(*_: object) -> None:
        raise LookupError("mine")

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        begun = time.monotonic()
        with pytest.raises(LookupError, match="mine"):
            ours.update_topology()
        assert time.monotonic() - begun < PROMPT
    finally:
        signal.signal(signal.SIGUSR2, before)
    # This peer has left the run; later calls raise.
    with pytest.raises(pccl.PCCLError) as caught:
        ours.update_topology()
    assert caught.value.result is pccl.Result.MASTER_CONNECTION_FAILED
    other.leave()
