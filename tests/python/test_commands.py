"""The commands that the wheel installs."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pccl
import pytest
from child import Child, Start

SCRIPTS = Path(sysconfig.get_path("scripts"))
LISTENING = "master listening on "
MASTERS = {
    "ccoip_master": ["ccoip_master", "--listen"],
    "pccl_master": ["pccl_master", "--listen-address"],
    "ringfold master": ["ringfold", "master", "--listen"],
}
# Everything here takes about a second; this is for machines that are busy.
DEADLINE = 60


def address_of(master: Child) -> tuple[str, int]:
    host, _, port = master.wait_for(LISTENING, DEADLINE).removeprefix(LISTENING).rpartition(":")
    return host, int(port)


def started(start: Start, words: list[str], address: str = "127.0.0.1:0") -> Child:
    return start(SCRIPTS / words[0], *words[1:], address)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("words", MASTERS.values(), ids=MASTERS.keys())
def test_a_master_tells_where_it_listens_ends_with_0_when_asked_to_and_frees_the_port(
    start: Start, words: list[str], number: signal.Signals
) -> None:
    master = started(start, words)
    address = address_of(master)
    # It ends with clients connected, too.
    with socket.create_connection(address, DEADLINE):
        master.signal(number)
        assert master.wait(DEADLINE) == 0, master.output
    assert master.output.splitlines() == [f"{LISTENING}{address[0]}:{address[1]}"]
    with socket.create_server(address):
        pass


def test_peers_meet_at_a_master_that_was_started_as_a_command(start: Start) -> None:
    host, port = address_of(started(start, MASTERS["pccl_master"]))
    with pccl.Communicator(f"{host}:{port}") as peer:
        peer.connect()
        assert peer.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) == 1


@pytest.mark.parametrize("words", MASTERS.values(), ids=MASTERS.keys())
def test_a_master_on_a_busy_port_names_it_and_exits_with_1(start: Start, words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        master = started(start, words, address)
        assert master.wait(DEADLINE) == 1, master.output
        assert master.output.startswith(f"{words[0]}: ") and address in master.output


def test_the_demo_survives_the_loss_of_a_peer(start: Start) -> None:
    small = ["--size", "1MiB", "--compute-ms", "10", "--steps", "9"]
    output = start(SCRIPTS / "ringfold", "demo", *small).succeed(2 * DEADLINE)
    for part in ["killed peer C", "peer E joined", "same bits on all (A B D E)", "all checks passed"]:
        assert part in output, output


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def test_a_demo_that_is_interrupted_leaves_nothing_behind(start: Start) -> None:
    demo = start(SCRIPTS / "ringfold", "demo", "--size", "1MiB", "--steps", "100000", "--no-chaos")
    demo.wait_for("step ", DEADLINE)
    children = children_of(demo.pid)
    assert len(children) == 5, demo.output
    demo.signal(signal.SIGINT)
    assert demo.wait(DEADLINE) == 130, demo.output
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_python_m_pccl_master_is_the_command_pccl_master(start: Start) -> None:
    help = start(sys.executable, "-m", "pccl.master", "--help").succeed(DEADLINE)
    assert help == start(SCRIPTS / "pccl_master", "--help").succeed(DEADLINE)
    assert "Usage: pccl_master" in help and "--listen-address" in help and "--log" in help


def test_python_m_ringfold_is_the_command_ringfold(start: Start) -> None:
    help = start(sys.executable, "-m", "ringfold", "--help").succeed(DEADLINE)
    assert help == start(SCRIPTS / "ringfold", "--help").succeed(DEADLINE)
    assert "Usage: ringfold" in help and "master" in help and "demo" in help


@pytest.mark.parametrize("name", ["ccoip_master", "pccl_master", "ringfold"])
def test_help_names_the_command_that_was_typed_and_nonsense_ends_it_with_2(start: Start, name: str) -> None:
    assert f"Usage: {name} " in start(SCRIPTS / name, "--help").succeed(DEADLINE)
    assert start(SCRIPTS / name, "--version").succeed(DEADLINE) == f"{name} {pccl.__version__}\n"
    wrong = start(SCRIPTS / name, "--nonsense")
    assert wrong.wait(DEADLINE) == 2
    assert "--nonsense" in wrong.output


def test_a_command_with_a_closed_output_pipe_exits_quietly() -> None:
    words = [str(SCRIPTS / "ringfold"), "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        assert command.stdout is not None and command.stderr is not None
        command.stdout.close()
        try:
            command.wait(DEADLINE)
        finally:
            command.kill()
        assert b"Traceback" not in command.stderr.read()
