"""The Python programs of the documentation run as they stand, but for the repairs marked in them."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fashion_mnist
import pytest
from child import Child, Start, python
from variants import short_of

pytest.importorskip("numpy")

SEEDS = Path(__file__).parent / "seeds"
PORT = 48148

# Starts a program when a file appears, with what it needs already imported. The first peer of a hello world
# waits one second for company; without this, a busy machine might not have started the third one by then.
GATE = """
import importlib, os, runpy, sys, time
gate, program, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
print("ready")
deadline = time.monotonic() + 120
while not os.path.exists(gate):
    if time.monotonic() > deadline:
        sys.exit("the gate never opened")
    time.sleep(0.01)
runpy.run_path(program, run_name="__main__")
"""


class ProgramRunner:
    """Runs programs that use a fixed port of the master."""

    def __init__(self, start: Start, prefix: list[str]) -> None:
        self._start = start
        self._prefix = prefix

    def run(self, words: list[str], folder: Path, **env: str) -> Child:
        # One thread a process: the machine has few cores, and all peers run on it.
        env = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **env}
        return self._start(*self._prefix, "env", "-C", folder, *words, env=env)


@pytest.fixture
def runner(start: Start, tmp_path: Path) -> Iterator[ProgramRunner]:
    """Programs run in a network namespace if root can create one, else on this machine; with a master."""
    with port_of_our_own(start) as prefix:
        runner = ProgramRunner(start, prefix)
        command = "from ringfold._cli import pccl_master; pccl_master()"
        listen = ["--listen-address", f"127.0.0.1:{PORT}"]
        master = runner.run([*python(command), *listen], tmp_path)
        master.wait_for("master listening on", 30)
        yield runner


@contextmanager
def port_of_our_own(start: Start) -> Iterator[list[str]]:
    """The prefix of commands that have the port for themselves."""
    if os.geteuid() == 0 and all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        script = "ip link set lo up && echo up && exec sleep 600"
        holder = start("unshare", "-n", "sh", "-c", f"({script}) || echo refused")
        if holder.wait_for("", 30) == "up":
            yield ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
            return
    # The same file as for the C++ program of the documentation.
    with open(Path(tempfile.gettempdir()) / "ringfold-port-48148.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", PORT))
            except OSError as error:
                pytest.skip(f"port {PORT} of 127.0.0.1: {error}")
        yield []


@pytest.mark.parametrize("peers", [2, 3])
@pytest.mark.parametrize("program", ["hello_world_000.py", "hello_world_001.py"])
def test_all_peers_of_the_hello_world_reach_revision_5(
    runner: ProgramRunner, program: str, peers: int, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    words = python(GATE, gate, SEEDS / program, "numpy", "pccl")
    children = [runner.run(words, tmp_path) for _ in range(peers)]
    for child in children:
        child.wait_for("ready", 60)
    gate.touch()
    for child in children:
        output = child.succeed(120)
        assert "Reached revision 5 => done." in output
        assert "fail" not in output
        # Each began at revision 0 with the others, and no step was missed or done twice.
        revisions = re.findall(r"shared_revision now (\d+), sync => tx=\d+, rx=0\n", output)
        assert revisions == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("peers", short_of([2], [3]))
def test_mnist_trains_to_the_end_and_all_peers_save_the_same_model(
    runner: ProgramRunner, peers: int, tmp_path: Path
) -> None:
    pytest.importorskip("torchvision")
    raw = fashion_mnist.folder()
    folders = [tmp_path / f"peer{rank}" for rank in range(peers)]
    for folder in folders:
        (folder / "data" / "MNIST").mkdir(parents=True)
        (folder / "data" / "MNIST" / "raw").symlink_to(raw)
    program = python(SEEDS / "mnist_001.py")
    children = [runner.run(program, folder, IS_CI="1", RANK=str(rank)) for rank, folder in enumerate(folders)]
    outputs = [child.succeed(280) for child in children]

    accuracies = {re.findall(r"^Test Accuracy: (\d+\.\d\d)%$", output, re.MULTILINE)[0] for output in outputs}
    assert len(accuracies) == 1
    # An untrained network recognises one image of ten.
    assert float(accuracies.pop()) > 75
    models = {(folder / "mnist_model.pth").read_bytes() for folder in folders}
    assert len(models) == 1
    for output in outputs:
        assert "Training completed" in output
        assert "failed" not in output
        # The program itself asserts that nothing was received after the first sync. All took part together.
        assert f"world_size: {peers}\n" in output
