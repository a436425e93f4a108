"""Masters within a Python process: their life, their port, and the script that only serves."""

from __future__ import annotations

import gc
import signal
import socket
import time

import pccl
import pytest
from child import Spawn
from peers import DEADLINE, begin, connected, together
from ports import free_port


def bind(address: str) -> None:
    """The port is free: it can be bound at once."""
    host, _, port = address.rpartition(":")
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))


def test_a_master_that_never_ran_cannot_be_awaited() -> None:
    master = pccl.MasterNode(listen_address="127.0.0.1:0")
    with pytest.raises(pccl.PCCLError) as caught:
        master.wait()
    assert caught.value.result is pccl.Result.INVALID_USAGE
    with pytest.raises(RuntimeError, match="run"):
        master.address  # noqa: B018
    assert "not running" in repr(master)
    master.interrupt()


def test_making_one_binds_nothing_and_a_busy_port_is_an_invalid_usage() -> None:
    with pccl.MasterNode("127.0.0.1:0") as master:
        assert master.address in repr(master)
        second = pccl.MasterNode(master.address)
        with pytest.raises(pccl.PCCLError, match="another program") as caught:
            second.run()
        assert caught.value.result is pccl.Result.INVALID_USAGE
        with pytest.raises(pccl.PCCLError) as caught:
            master.run()
        assert caught.value.result is pccl.Result.INVALID_ARGUMENT
    second = pccl.MasterNode(master.address)
    second.run()
    second.interrupt()
    second.interrupt()
    second.wait()
    second.wait()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999"])
def test_an_invalid_address_is_an_error(address: str) -> None:
    with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*address"):
        pccl.MasterNode(address).run()


def test_five_masters_serve_on_one_port_one_after_the_other() -> None:
    address = f"127.0.0.1:{free_port()}"
    for _ in range(5):
        master = pccl.MasterNode(address)
        master.run()
        comm = pccl.Communicator(address)
        comm.connect(n_attempts=1)
        master.interrupt()
        del master
        gc.collect()
        bind(address)
        comm.leave()


def test_a_master_that_is_awaited_blocks_until_it_is_interrupted() -> None:
    master = pccl.MasterNode("127.0.0.1:0")
    master.run()
    waiting = begin(master.wait)
    waiting.wait_until_blocked()
    assert not waiting.done()
    master.interrupt()
    waiting.result(DEADLINE)
    bind(master.address)


def test_a_master_ends_with_peers_connected_and_they_leave_promptly() -> None:
    master = pccl.MasterNode("127.0.0.1:0")
    master.run()
    with connected(master.address) as peers:
        begun = time.monotonic()
        master.interrupt()
        del master
        gc.collect()
        while peers:
            peers.pop()
            gc.collect()
        assert time.monotonic() - begun < 20


def test_a_run_goes_on_when_its_master_comes_back() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pccl.MasterNode(address):
        peers = [pccl.Communicator(address, name=name) for name in "ab"]
        peers[0].connect()
        joining = begin(peers[1].connect)
        while peers[0].world_size < 2:
            peers[0].update_topology()
        joining.result(DEADLINE)
    with pccl.MasterNode(address):
        together(*(peer.update_topology for peer in peers))
        assert [peer.world_size for peer in peers] == [2, 2]
        for peer in peers:
            peer.leave()


SERVE = """
import pccl
master = pccl.MasterNode("127.0.0.1:0")
master.run()
print("listens on", master.address, flush=True)
"""
IN_A_FUNCTION = """
import pccl
def serve():
    master = pccl.MasterNode("127.0.0.1:0")
    master.run()
    print("listens on", master.address, flush=True)
serve()
"""


@pytest.mark.parametrize("code", [SERVE, IN_A_FUNCTION])
def test_a_script_that_only_runs_a_master_serves_until_ctrl_c(spawn: Spawn, code: str) -> None:
    child = spawn(code)
    address = child.wait_for("listens on", DEADLINE).rpartition(" ")[2]
    child.wait_until_blocked()
    with connected(address) as peers:
        assert [peer.world_size for peer in peers] == [2, 2]
    child.signal(signal.SIGINT)
    begun = time.monotonic()
    assert child.succeed(DEADLINE).splitlines() == [f"listens on {address}"]
    assert time.monotonic() - begun < 30
    bind(address)


def test_the_port_is_free_after_kill_9(spawn: Spawn) -> None:
    child = spawn(SERVE)
    address = child.wait_for("listens on", DEADLINE).rpartition(" ")[2]
    comm = pccl.Communicator(address)
    comm.connect()
    child.kill()
    with pccl.MasterNode(address):
        comm.update_topology()
        comm.leave()


@pytest.mark.parametrize(
    "last, words", [("raise RuntimeError('mine')", "mine"), ("time.sleep(60)", "KeyboardInterrupt")]
)
def test_a_script_that_dies_takes_its_master_with_it(spawn: Spawn, last: str, words: str) -> None:
    child = spawn(f"import time{SERVE}{last}\n")
    child.wait_for("listens on", DEADLINE)
    if words == "KeyboardInterrupt":
        child.wait_until_blocked()
        child.signal(signal.SIGINT)
    assert child.wait(DEADLINE) in (1, 130, -signal.SIGINT)
    assert words in child.output and child.output.count("Traceback") == 1
