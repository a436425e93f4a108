"""Runs with several masters, as users start them: the active one is killed, and no call fails."""

from __future__ import annotations

import re
import signal
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import pccl
import pytest
from child import Child, Spawn, Start
from elastic_runs import PEER as TRAINER
from elastic_runs import assert_same, begin_together, steps_of
from peers import DEADLINE
from ports import free_port
from variants import is_long

pytest.importorskip("numpy")

RINGFOLD = Path(sysconfig.get_path("scripts")) / "ringfold"
ACTIVE, STANDS_BY = "this master is active, ", "this master stands by: "
ROLE = re.compile(f"{ACTIVE}|{STANDS_BY}|this master is not active|no active master")
IN_PYTHON = """
import sys, pccl
masters = sys.argv[2].split(",")
master = pccl.MasterNode(sys.argv[1], masters=masters)
master.run()
print("serves", flush=True)
"""
# Sums powers of two, one of each peer, until so many peers have made some steps together. Nothing is tried again.
PEER = """
import pathlib, sys, time
import numpy as np, pccl

masters, number, first, last, gate = sys.argv[1], *map(int, sys.argv[2:5]), pathlib.Path(sys.argv[5])
print("ready", flush=True)
while not gate.exists():
    time.sleep(0.01)
with pccl.Communicator(masters, 0, name=f"p{number}") as comm:
    comm.connect()
    print("joined", flush=True)
    while comm.world_size < first:
        comm.update_topology()
    step, complete = 0, 0
    while complete < 20:
        values = np.full(1000, 2.0**number)
        info = comm.all_reduce(values, values)
        assert first <= info.world_size <= last, info
        assert (values == 2.0**info.world_size - 1).all(), values
        step += 1
        complete += info.world_size == last
        print(f"step {step} of {info.world_size}", flush=True)
        if comm.are_peers_pending():
            comm.update_topology()
        time.sleep(0.01)
print("finished", flush=True)
"""


class Masters:
    """The masters of a run, each a process."""

    def __init__(self, serve: Callable[[str, str], Child], count: int) -> None:
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.list = ",".join(self.addresses)
        self._serve = serve
        self.killed: set[int] = set()
        self.processes = [serve(address, self.list) for address in self.addresses]

    def roles(self) -> dict[int, str]:
        """What the log of each one that runs said last of its role."""
        said = {index: ROLE.findall(child.output) for index, child in enumerate(self.processes)}
        return {index: (roles or [""])[-1] for index, roles in said.items() if index not in self.killed}

    def active(self) -> int:
        """Waits until one of those that run is active, and the others stand by."""
        deadline = time.monotonic() + DEADLINE
        while True:
            roles = self.roles()
            active = [index for index, role in roles.items() if role == ACTIVE]
            if len(active) == 1 and list(roles.values()).count(STANDS_BY) == len(roles) - 1:
                return active[0]
            logs = "\n".join(child.output for child in self.processes)
            assert time.monotonic() < deadline, f"not one that is active, and others that stand by:\n{logs}"
            time.sleep(0.02)

    def kill_active(self) -> int:
        index = self.active()
        self.killed.add(index)
        self.processes[index].kill()
        return index

    def restart(self, index: int) -> Child:
        self.processes[index] = self._serve(self.addresses[index], self.list)
        self.killed.remove(index)
        return self.processes[index]


Serve = Callable[[str, str], Child]


@pytest.fixture
def by_command(start: Start) -> Serve:
    """Starts a master as a command."""
    return lambda address, masters: start(
        RINGFOLD, "master", "--listen", address, "--masters", masters, "--log", "info"
    )


@pytest.fixture
def in_python(spawn: Spawn) -> Serve:
    """Starts a master in a Python process."""
    return lambda address, masters: spawn(IN_PYTHON, address, masters, env={"RINGFOLD_LOG": "info"})


def step_of(child: Child) -> int:
    return max((int(step) for step in re.findall(r"^step (\d+) ", child.output, re.MULTILINE)), default=0)


@pytest.mark.parametrize("way", ["by_command", "in_python"])
def test_no_call_fails_when_the_active_master_is_killed(
    way: str, request: pytest.FixtureRequest, spawn: Spawn, tmp_path: Path
) -> None:
    masters, gate = Masters(request.getfixturevalue(way), 3), tmp_path / "gate"
    assert masters.active() == 0
    peers = begin_together(spawn, gate, PEER, [(masters.list, number, 3, 4) for number in range(3)])
    for peer in peers:
        peer.wait_for("step 20 of 3", DEADLINE)
    killed = masters.kill_active()
    seen = max(map(step_of, peers))
    for peer in peers:
        peer.wait_for(f"step {seen + 20} of 3", DEADLINE)
    assert masters.active() != killed
    # It is started again and stands by, and a newcomer finds the active one.
    masters.restart(killed).wait_for(STANDS_BY, DEADLINE)
    newcomer = spawn(PEER, masters.list, 3, 4, 4, gate)
    for peer in [*peers, newcomer]:
        assert peer.succeed(DEADLINE).endswith("finished\n")


def test_a_run_goes_on_when_the_active_master_is_killed(
    by_command: Serve, spawn: Spawn, tmp_path: Path
) -> None:
    masters = Masters(by_command, 3)
    masters.active()
    arguments = [(masters.list, seed, 60, 0.02) for seed in range(3)]
    peers = begin_together(spawn, tmp_path / "gate", TRAINER, arguments)
    for peer in peers:
        peer.wait_for("step 10 ", DEADLINE)
    masters.kill_active()
    outputs = [peer.succeed(DEADLINE) for peer in peers]
    assert_same(*outputs)
    assert all("ended at 60" in output and set(range(10, 60)) <= set(steps_of(output)) for output in outputs)
    # Nobody was evicted.
    assert all(line.endswith(" of 3") for line in outputs[0].splitlines() if line.startswith("step 59"))


def test_connect_says_which_masters_are_missing(by_command: Serve) -> None:
    masters = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    by_command(masters[0], ",".join(masters)).wait_for("master listening on", DEADLINE)
    with pytest.raises(pccl.MasterConnectionFailed) as caught:
        # Those that are missing are tried first.
        pccl.Communicator(",".join(reversed(masters)), connect_timeout=2.0).connect()
    for part in [
        "no active master",
        f"{masters[0]}: connected, but it is not active",
        f"{masters[1]}: Connection ref",
    ]:
        assert part in str(caught.value)


def test_masters_end_on_ctrl_c_and_the_others_say_so(by_command: Serve) -> None:
    masters = Masters(by_command, 3)
    assert masters.active() == 0
    for last, index in enumerate([2, 0]):
        masters.processes[1].wait_for(f"master {index + 1} of the list is here", DEADLINE)
        masters.processes[index].signal(signal.SIGINT)
        masters.killed.add(index)
        assert masters.processes[index].wait(DEADLINE) == 0
        gone = f"master {index + 1} of the list is not here any more: {2 - last} of 3 masters are"
        masters.processes[1].wait_for(gone, DEADLINE)


@pytest.mark.parametrize("way", ["by_command", "in_python"])
def test_another_order_of_the_list_is_reported_by_all(way: str, request: pytest.FixtureRequest) -> None:
    serve: Serve = request.getfixturevalue(way)
    masters = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    others = [serve(address, ",".join(masters)) for address in masters[:2]]
    odd = serve(masters[2], ",".join([masters[1], masters[0], masters[2]]))
    for position, child in enumerate(others, 1):
        line = child.wait_for("ignoring master 3: ", DEADLINE)
        assert (
            f"this one is number {3 - position} of 3, in the list of this one number {position} of 3" in line
        )
        odd.wait_for(f"ignoring master {position}: it has another list", DEADLINE)
    odd.kill()
    serve(masters[2], ",".join(masters)).wait_for(STANDS_BY, DEADLINE)


@pytest.mark.parametrize(
    "listen, masters, this, error",
    [
        (
            "127.0.0.1:0",
            ["127.0.0.1:9", "127.0.0.1:10"],
            None,
            "not in the list of masters 127.0.0.1:9,127.0.0.1:10",
        ),
        (
            "127.0.0.1:0",
            "127.0.0.1:9, 127.0.0.1:10",
            None,
            "not in the list of masters 127.0.0.1:9,127.0.0.1:10",
        ),
        ("127.0.0.1:0", ["127.0.0.1:9", "127.0.0.1:9"], 1, "127.0.0.1:9 is in it twice"),
        (
            "127.0.0.1:0",
            ["127.0.0.1:9", "127.0.0.1"],
            1,
            'invalid master address "127.0.0.1": expected host:port',
        ),
        ("127.0.0.1:0", ["127.0.0.1:9", "127.0.0.1:10"], 3, "invalid position 3 of this master"),
        ("127.0.0.1:0", None, 1, "no list of masters is given"),
    ],
)
def test_a_wrong_list_is_an_error_at_the_start(
    listen: str, masters: str | list[str] | None, this: int | None, error: str
) -> None:
    with pytest.raises(pccl.PCCLError) as caught:
        pccl.MasterNode(listen, masters=masters, this_master=this).run()
    assert caught.value.result is pccl.Result.INVALID_ARGUMENT and error in str(caught.value)


def test_a_position_is_enough_where_the_address_is_another_one() -> None:
    with pytest.raises(ValueError, match="positions begin with 1"):
        pccl.MasterNode("127.0.0.1:0", masters="127.0.0.1:9,127.0.0.1:10", this_master=0)
    with pccl.MasterNode("127.0.0.1:0", masters="127.0.0.1:9,127.0.0.1:10", this_master=2) as master:
        assert not master.address.endswith(":10")


def test_a_position_may_be_given_for_the_list_of_the_environment(start: Start) -> None:
    masters = ["127.0.0.1:9", "127.0.0.1:10"]
    words = [RINGFOLD, "master", "--listen", "127.0.0.1:0", "--this-master", "2"]
    start(*words, env={"RINGFOLD_MASTERS": ",".join(masters)}).wait_for("master listening on", DEADLINE)
    alone = start(*words)
    assert alone.wait(DEADLINE) == 1 and "no list of masters is given" in alone.output


# What is left of the run of two masters and two peers when one of each dies: one vote of each, and not that of the active
# master. A peer looks for an active master for 60 s.
if is_long():

    def test_a_minority_stops_with_an_error_that_names_the_masters(
        by_command: Serve, spawn: Spawn, tmp_path: Path
    ) -> None:
        masters = Masters(by_command, 2)
        assert masters.active() == 0
        arguments = [(masters.list, number, 2, 3) for number in range(2)]
        peers = begin_together(spawn, tmp_path / "gate", PEER, arguments)
        for peer in peers:
            peer.wait_for("step 20 of 2", DEADLINE)
        # Both die before either death is noticed: a stopped one does nothing more.
        peers[1].signal(signal.SIGSTOP)
        masters.processes[0].signal(signal.SIGSTOP)
        peers[1].kill()
        masters.processes[0].kill()
        begun = time.monotonic()
        assert peers[0].wait(DEADLINE) == 1, peers[0].output
        assert 55 < time.monotonic() - begun < 80
        last = peers[0].output.splitlines()[-1]
        assert (
            "the master is lost: it did not return in time (" in last and "MASTER_CONNECTION_FAILED" in last
        )
        assert f"{masters.addresses[0]}: Connection refused" in last
        assert f"{masters.addresses[1]}: connected, but it is not active: its log says why" in last
        assert "this one cannot take over" in masters.processes[1].output
