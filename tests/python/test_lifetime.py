"""The end of a program, in any order of destruction, and forks: exit code 0, nothing on standard error, no hang."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pccl
import pytest
from child import python
from peers import DEADLINE, connected, together

# Two peers in one process; b joins on a thread.
BEGIN = f"""
import atexit, gc, os, sys, threading, time
from array import array
sys.path.append({str(Path(__file__).parent)!r})
from blocked import wait_until_blocked
import pccl
master = pccl.MasterNode("127.0.0.1:0")
master.run()
a = pccl.Communicator(master.address, name="a")
b = pccl.Communicator(master.address, name="b")
a.connect()
joining = threading.Thread(target=b.connect)
joining.start()
while a.world_size < 2:
    a.update_topology()
joining.join()
one = array("f", [1])
state = pccl.SharedState([pccl.TensorInfo("one", data=one)])
"""

# The master is interrupted, or the script would go on serving. The interpreter decides the rest of the order.
ENDS = {
    "globals": "master.interrupt()",
    "nothing else than the end": "atexit.register(master.interrupt)",
    "master first": "master.interrupt(); master.wait(); del master; gc.collect()",
    "communicators first": "del a, b; gc.collect(); master.interrupt()",
    "left": "a.leave(); b.leave(); master.interrupt()",
    "cycles": """
class Node: pass
nodes = [Node() for _ in range(3)]
nodes[0].next, nodes[1].next, nodes[2].next = nodes[1], nodes[2], nodes[0]
nodes[0].held, nodes[1].held, nodes[2].held = a, (b, state), master
nodes[0].handle = a.all_reduce_async(one, one)
master.interrupt()
del a, b, master, nodes, state
""",
    "operations that are not awaited": """
handles = [a.all_reduce_async(array("f", [1]), array("f", [1]), tag=tag) for tag in range(5)]
b.all_reduce_async(one, one, tag=0)
master.interrupt()
""",
    "operations whose handles are gone": """
for tag in range(5):
    a.all_reduce_async(array("f", [1]), array("f", [1]), tag=tag)
master.interrupt()
""",
    "a handle that outlives its communicator": """
handle = a.all_reduce_async(one, one)
keep = [handle]
del a
master.interrupt()
""",
    "daemon threads that wait": """
handle = b.all_reduce_async(one, one, tag=9)
late = pccl.Communicator(master.address)
for call in (
    lambda: b.all_reduce(array("f", [1]), array("f", [1]), tag=1),
    lambda: b.all_reduce(array("f", [1]), array("f", [1]), tag=2),
    handle.wait,
    a.are_peers_pending,
    late.connect,
    master.wait,
):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    wait_until_blocked(os.getpid(), thread.native_id)
atexit.register(master.interrupt)
""",
    "a daemon thread that works": """
is_going = threading.Event()
def work(comm):
    while True:
        data = array("f", [1])
        comm.all_reduce(data, data)
        is_going.set()
for comm in (a, b):
    threading.Thread(target=work, args=[comm], daemon=True).start()
is_going.wait()
atexit.register(master.interrupt)
""",
    "sys.exit": "master.interrupt(); sys.exit(0)",
    "os._exit": "os._exit(0)",
    "an exception that is handled": """
try:
    raise RuntimeError("in flight")
except RuntimeError as error:
    kept = error
    handle = a.all_reduce_async(one, one)
    master.interrupt()
    sys.exit(0)
""",
    "referred to by the module": "pccl.kept = [a, b, master, state]; sys.kept = a; master.interrupt()",
    "an exit function of the user that uses it": """
atexit.register(lambda: (a.world_size, a.leave(), b.leave(), master.interrupt()))
""",
    "a communicator that never connected": 'c = pccl.Communicator("127.0.0.1:1"); master.interrupt()',
    "a master that never ran": 'm = pccl.MasterNode("127.0.0.1:1"); master.interrupt()',
    "numpy goes first": """
try:
    import numpy
except ImportError:
    os._exit(0)
data = numpy.ones(1000, numpy.float32)
handle = a.all_reduce_async(data, data)
del data, numpy
master.interrupt()
""",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_well_with(end: str) -> None:
    begun = time.monotonic()
    # The loss of the master is a warning in the log.
    env = {**os.environ, "PCCL_LOG_LEVEL": "ERROR"}
    ran = subprocess.run(
        python(BEGIN + ENDS[end]), env=env, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", ""), ran.stderr
    assert time.monotonic() - begun < 8


def test_an_uncaught_exception_is_all_that_is_printed() -> None:
    code = BEGIN + 'handle = a.all_reduce_async(one, one)\nraise RuntimeError("mine")\n'
    env = {**os.environ, "PCCL_LOG_LEVEL": "ERROR"}
    ran = subprocess.run(python(code), env=env, capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert ran.returncode == 1 and ran.stderr.count("Traceback") == 1 and "mine" in ran.stderr


def fork(child: object) -> int:
    """Runs this in a forked child, whose exit code it gives."""
    assert callable(child)
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = child() or 0
        except SystemExit as exit:
            code = int(exit.code or 0)
        finally:
            os._exit(code)
    deadline = time.monotonic() + 10
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)


def goes_on(peers: list[pccl.Communicator]) -> None:
    data = [array("f", [1]), array("f", [2])]
    together(*(lambda c=c, d=d: c.all_reduce(d, d) for c, d in zip(peers, data)))
    assert data[0].tolist() == data[1].tolist() == [3]
    together(*(comm.update_topology for comm in peers))
    assert [comm.world_size for comm in peers] == [2, 2]


def test_a_forked_child_that_uses_its_parents_objects_gets_an_error(master: str) -> None:
    with connected(master) as peers:
        a = peers[0]
        one = array("f", [1])
        handle = a.all_reduce_async(one, one, tag=1)
        state = pccl.SharedState([pccl.TensorInfo("one", data=one)])
        calls = (
            a.connect,
            a.update_topology,
            a.are_peers_pending,
            a.optimize_topology,
            lambda: a.world_size,
            lambda: a.all_reduce(one, one),
            lambda: a.all_reduce_async(one, one),
            lambda: a.sync_shared_state(state),
            handle.wait,
            handle.done,
        )

        def child() -> int:
            for call in calls:
                try:
                    call()
                except pccl.PCCLError as error:
                    if error.result is not pccl.Result.INVALID_USAGE or "fork" not in str(error):
                        return 1
                else:
                    return 2
            a.leave()
            return 0 if a.name == "a" and "a" in repr(a) else 3

        assert fork(child) == 0
        b = peers[1].all_reduce_async(one, array("f", [1]), tag=1)
        assert b.wait()[0] and handle.wait()[0]
        goes_on(peers)


def test_a_forked_child_that_drops_everything_does_not_disturb_its_parent() -> None:
    node = pccl.MasterNode("127.0.0.1:0")
    node.run()
    with connected(node.address) as peers:
        made = [peers[0].all_reduce_async(array("f", [1]), array("f", [1]), tag=1)]

        def child() -> int:
            nonlocal node
            made.clear()
            peers.clear()
            del node
            return 0

        assert fork(child) == 0
        peers[1].all_reduce(array("f", [1]), array("f", [1]), tag=1)
        assert made[0].wait()[0]
        goes_on(peers)
    node.interrupt()
    node.wait()


FORKS = """
pid = os.fork()
if pid == 0:
    sys.exit(0)  # with all that happens at the end of an interpreter
deadline = time.monotonic() + 20
while os.waitpid(pid, os.WNOHANG) == (0, 0):
    if time.monotonic() > deadline:
        os.kill(pid, 9)
        sys.exit("the child hangs")
    time.sleep(0.01)
threading.Thread(target=lambda: b.all_reduce(array("f", [1]), array("f", [1])), daemon=True).start()
a.all_reduce(one, array("f", [1]))
master.interrupt()
"""


def test_a_forked_child_ends_as_any_interpreter_does() -> None:
    # Python 3.12 warns of forks in processes with several threads.
    quiet = {"PCCL_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    env = {**os.environ, **quiet}
    ran = subprocess.run(
        python(BEGIN + FORKS), env=env, capture_output=True, text=True, check=False, timeout=DEADLINE
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def _square(number: int) -> int:
    return number * number


def test_a_pool_of_forked_processes_works_beside_a_run(master: str) -> None:
    with connected(master) as peers:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_square, range(4)) == [0, 1, 4, 9]
            goes_on(peers)
        goes_on(peers)


def test_a_forked_child_can_make_its_own_communicator(master: str) -> None:
    with connected(master) as peers:

        def child() -> int:
            comm = pccl.Communicator(master, peer_group=1)
            comm.connect()
            world = comm.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE)
            comm.leave()
            return world

        pid = os.fork()
        if pid == 0:
            os._exit(child())
        deadline = time.monotonic() + DEADLINE
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            together(*(comm.update_topology for comm in peers))
            assert time.monotonic() < deadline
        goes_on(peers)


def test_memory_of_the_interpreter_is_not_leaked_by_calls(master: str) -> None:
    with connected(master) as (a, b):
        data = array("f", [1]), array("f", [1])

        def some(count: int) -> None:
            for _ in range(count):
                handle = a.all_reduce_async(data[0], data[0])
                b.all_reduce(data[1], data[1])
                handle.wait()
                pccl.SharedState([pccl.TensorInfo("x", data=data[0])])

        some(50)
        before = sys.getallocatedblocks()
        some(300)
        assert sys.getallocatedblocks() - before < 100
