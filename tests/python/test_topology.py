"""Membership of a run: connecting, votes, groups, attributes, tokens."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pccl
import pytest
from peers import DEADLINE, begin, connected, join, outcomes, together
from ports import free_port

Attribute = pccl.Attribute


def test_before_connect_every_vote_is_an_invalid_usage() -> None:
    comm = pccl.Communicator("127.0.0.1:1")
    state = pccl.SharedState([pccl.TensorInfo("x", data=bytearray(1))])
    for call in (
        comm.update_topology,
        comm.are_peers_pending,
        comm.optimize_topology,
        lambda: comm.sync_shared_state(state),
    ):
        with pytest.raises(pccl.PCCLError, match="not connected") as caught:
            call()
        assert caught.value.result is pccl.Result.INVALID_USAGE and not caught.value.is_retryable
    assert comm.world_size == 0
    comm.leave()
    comm.leave()


def test_the_first_peer_is_accepted_at_once_and_only_once(master: str) -> None:
    with pccl.Communicator(address=master, peer_group=3, p2p_connection_pool_size=2, name="first") as comm:
        comm.connect()
        assert comm.name == "first" and "first" in repr(comm)
        for attribute in Attribute:
            assert comm.get_attribute(attribute) == 1
        with pytest.raises(pccl.PCCLError) as caught:
            comm.connect()
        assert caught.value.result is pccl.Result.INVALID_USAGE
        comm.update_topology()
        assert comm.are_peers_pending() is False
        with pytest.raises(pccl.PCCLError) as caught:
            comm.optimize_topology()
        assert caught.value.result is pccl.Result.INVALID_USAGE


def test_connect_tries_so_often_a_second_apart() -> None:
    comm = pccl.Communicator(f"127.0.0.1:{free_port()}")
    for attempts, seconds in ((1, 0), (2, 1)):
        begun = time.monotonic()
        with pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED: connect: .*refused") as caught:
            comm.connect(n_attempts=attempts)
        assert seconds <= time.monotonic() - begun < 20
        assert caught.value.is_retryable
    with pytest.raises(ValueError, match="n_attempts"):
        comm.connect(0)


def test_connect_retries_until_the_master_listens() -> None:
    address = f"127.0.0.1:{free_port()}"
    comm = pccl.Communicator(address)
    connecting = begin(comm.connect, 20)
    connecting.wait_until_blocked()
    with pccl.MasterNode(address):
        connecting.result(DEADLINE)
        assert comm.world_size == 1
        comm.leave()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_masters_are_found_by_name(master: str, host: str) -> None:
    with pccl.Communicator(f"{host}:{master.rpartition(':')[2]}") as comm:
        comm.connect(n_attempts=1)
        assert comm.world_size == 1


def test_ipv6_works_from_end_to_end() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with pccl.MasterNode("[::1]:0") as master:
        assert master.address.startswith("[::1]:")
        with connected(master.address) as (a, b):
            data = array("f", [1]), array("f", [2])
            together(*(lambda c=c, d=d: c.all_reduce(d, d) for c, d in zip((a, b), data)))
            assert data[0].tolist() == [3]


def test_only_peers_with_the_token_are_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pccl.MasterNode("127.0.0.1:0", token="open sesame") as master:
        with pccl.Communicator(master.address, token="open sesame") as comm:
            comm.connect()
        for wrong in ("open says me", None):
            begun = time.monotonic()
            with pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED.*token") as caught:
                pccl.Communicator(master.address, token=wrong).connect(n_attempts=60)
            assert not caught.value.is_retryable and time.monotonic() - begun < 20, "no retry helps"
        path = tmp_path / "token"
        path.write_text("open sesame\n")
        monkeypatch.setenv("PCCL_JOIN_TOKEN_FILE", str(path))
        with pccl.Communicator(master.address) as comm:
            comm.connect()
        monkeypatch.setenv("PCCL_JOIN_TOKEN", "wrong")
        with pytest.raises(pccl.PCCLError, match="token"):
            pccl.Communicator(master.address).connect()
    with pccl.MasterNode("127.0.0.1:0") as master, pccl.Communicator(master.address) as comm:
        comm.connect()


def test_only_peers_with_a_certificate_are_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def keys(*arguments: str, at: str = "certs") -> None:
        command = [sys.executable, "-m", "ringfold", "keys", *arguments]
        directory = ("--out" if arguments[0] == "new" else "--ca", str(tmp_path / at))
        subprocess.run([*command, *directory], check=True, timeout=60)

    def files(name: str, at: str = "certs") -> list[str]:
        return [str(tmp_path / at / file) for file in ("ca.pem", f"{name}.pem", f"{name}.key")]

    keys("new", "--run", "a-run")
    keys("issue", "head", "--role", "master")
    keys("issue", "alice")
    keys("new", "--run", "a-run", at="other")
    keys("issue", "stranger", at="other")
    with pccl.MasterNode("127.0.0.1:0", tls=files("head")) as master:
        with pccl.Communicator(master.address, tls=files("alice")) as comm:
            comm.connect()
        with pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED.*not signed by a CA of this run"):
            pccl.Communicator(master.address, tls=files("stranger", "other")).connect()
        with pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED.*must be encrypted"):
            pccl.Communicator(master.address).connect()
        for variable, path in zip(("CA", "CERT", "KEY"), files("alice")):
            monkeypatch.setenv(f"RINGFOLD_TLS_{variable}", path)
        with pccl.Communicator(master.address) as comm:
            comm.connect()
    with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*does not belong to"):
        pccl.Communicator(master.address, tls=[*files("alice")[:2], files("head")[2]])
    with pytest.raises(pccl.PCCLError, match="invalid tls of 1 paths"):
        pccl.Communicator(master.address, tls=files("alice")[:1])


def test_a_joining_peer_is_pending_for_all_until_the_vote(master: str) -> None:
    with connected(master) as (a, b):
        assert together(a.are_peers_pending, b.are_peers_pending) == [False, False]
        late = pccl.Communicator(master, name="late")
        connecting = begin(late.connect)
        deadline = time.monotonic() + DEADLINE
        while not all(answers := together(a.are_peers_pending, b.are_peers_pending)):
            assert answers == [False, False] and time.monotonic() < deadline
        assert not connecting.done()
        assert a.world_size == 2
        together(a.update_topology, b.update_topology)
        connecting.result(DEADLINE)
        assert [c.world_size for c in (a, b, late)] == [3, 3, 3]
        assert together(*(c.are_peers_pending for c in (a, b, late))) == [False] * 3
        late.leave()


def test_a_long_wait_is_reported_once(master: str) -> None:
    with pccl.Communicator(master, name="inside") as inside:
        inside.connect()
        begun = time.monotonic()
        with pytest.raises(pccl.PCCLError, match="MASTER_CONNECTION_FAILED: connect") as caught:
            pccl.Communicator(master, connect_timeout=0.3).connect(n_attempts=60)
        assert time.monotonic() - begun < 20 and "accept" in str(caught.value)


def test_pending_peers_are_admitted_when_all_accepted_ones_have_left(master: str) -> None:
    first, second = pccl.Communicator(master), pccl.Communicator(master)
    first.connect()
    connecting = begin(second.connect)
    connecting.wait_until_blocked()
    assert not connecting.done()
    first.leave()
    connecting.result(DEADLINE)
    assert second.world_size == 1
    second.leave()


def test_groups_reduce_among_themselves_and_vote_together(master: str) -> None:
    groups = [0, 0, 7]
    peers = [pccl.Communicator(master, peer_group=group) for group in groups]
    together(*(lambda p=p: join(p, 3) for p in peers))
    seen = [[peer.get_attribute(attribute) for attribute in Attribute] for peer in peers]
    assert seen == [[3, 2, 2, 2], [3, 2, 2, 2], [3, 1, 2, 2]]
    data = array("f", [1]), array("f", [2])
    together(*(lambda c=c, d=d: c.all_reduce(d, d) for c, d in zip(peers, data)))
    assert data[0].tolist() == [3]
    with pytest.raises(pccl.PCCLError, match="TOO_FEW_PEERS"):
        peers[2].all_reduce(data[0], data[0])
    for peer in peers:
        peer.leave()


def test_the_world_falls_by_votes_and_failures_and_not_by_a_success(master: str) -> None:
    with connected(master, 3) as peers:
        data = [array("f", [1]) for _ in peers]
        together(*(lambda c=c, d=d: c.all_reduce(d, d) for c, d in zip(peers, data)))
        # The last step of a run: a peer that leaves after its own success does not fail the others.
        peers[2].leave()
        time.sleep(0.2)
        assert [c.world_size for c in peers[:2]] == [3, 3]
        together(*(c.update_topology for c in peers[:2]))
        assert [c.world_size for c in peers[:2]] == [2, 2]
        peers[1].leave()
        time.sleep(0.2)
        assert peers[0].world_size == 2
        with pytest.raises(pccl.PCCLError):
            peers[0].all_reduce(data[0], data[0])
        assert peers[0].world_size == 1


def test_topologies_are_optimised_together(master: str) -> None:
    with connected(master, 3) as peers:
        together(*(c.optimize_topology for c in peers))
        data = [array("f", [1]) for _ in peers]
        together(*(lambda c=c, d=d: c.all_reduce(d, d) for c, d in zip(peers, data)))
        assert [d.tolist() for d in data] == [[3]] * 3


def test_different_votes_are_told_apart_by_name(master: str) -> None:
    with connected(master) as (a, b):
        data = array("f", [1])
        errors = outcomes(a.update_topology, lambda: b.all_reduce(data, data, deadline=5))
        assert all(isinstance(error, pccl.PCCLError) for error in errors)
        text = " ".join(map(str, errors))
        assert "update_topology" in text and "all_reduce" in text and "b" in text


def test_a_communicator_leaves_when_its_last_reference_goes(master: str) -> None:
    with connected(master) as peers:
        peers.pop()
        gc.collect()
        deadline = time.monotonic() + DEADLINE
        while peers[0].world_size > 1:
            peers[0].update_topology()
            assert time.monotonic() < deadline


def test_after_leaving_every_call_raises(master: str) -> None:
    comm = pccl.Communicator(master)
    comm.connect()
    comm.leave()
    comm.leave()
    for call in (comm.update_topology, comm.are_peers_pending, comm.optimize_topology):
        with pytest.raises(pccl.PCCLError, match="closed") as caught:
            call()
        assert caught.value.result is pccl.Result.MASTER_CONNECTION_FAILED and not caught.value.is_retryable


@pytest.mark.parametrize("attribute", [1, "GLOBAL_WORLD_SIZE", None])
def test_attributes_are_of_their_enum(master: str, attribute: object) -> None:
    with pytest.raises(TypeError, match="Attribute"):
        pccl.Communicator(master).get_attribute(attribute)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"listen_ports": (0, 70000)},
        {"bind": "x"},
        {"advertise": "x"},
        {"connect_timeout": -1},
        {"peer_group": -1},
    ],
    ids=str,
)
def test_invalid_options_are_rejected_at_once(options: dict[str, object]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        pccl.Communicator("127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_peers_can_be_told_where_to_listen_and_what_to_advertise(master: str) -> None:
    port = free_port()
    options = {"bind": "127.0.0.1", "advertise": ["127.0.0.1"], "site": 4}
    one = pccl.Communicator(master, listen_ports=port, **options)  # type: ignore[arg-type]
    other = pccl.Communicator(master, listen_ports=(port + 1, port + 30), **options)  # type: ignore[arg-type]
    together(lambda: join(one, 2), lambda: join(other, 2))
    data = array("f", [1]), array("f", [2])
    together(lambda: one.all_reduce(data[0], data[0]), lambda: other.all_reduce(data[1], data[1]))
    assert data[0].tolist() == [3]
    one.leave()
    other.leave()
