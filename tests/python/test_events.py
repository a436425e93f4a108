"""The log as JSON and the flight recorder, as Python programs have them."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from child import Spawn, Start
from peers import DEADLINE

# A run within one process, which is killed.
RUN = """
import os, signal, sys
import numpy as np
import pccl
from peers import connected, together
options = {"settings": {"flight_dir": sys.argv[1]}} if len(sys.argv) > 1 else {}
with pccl.MasterNode("127.0.0.1:0", **options) as master, connected(master.address, 2, **options) as peers:
    data = [np.ones(1 << 20, dtype=np.float32) for _ in peers]
    together(*(lambda i=i: peers[i].all_reduce(data[i], data[i]) for i in range(2)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(spawn: Spawn, *arguments: Path, **env: str) -> str:
    """What a run that was killed has printed."""
    child = spawn(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}){RUN}", *arguments, env=env)
    assert child.wait(DEADLINE) == -signal.SIGKILL, child.output
    return child.output


def replayed(start: Start, directory: Path) -> list[Any]:
    output = start(sys.executable, "-m", "ringfold", "replay", "--json", directory).succeed(DEADLINE)
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("by", ["setting", "variable"])
def test_the_last_events_can_be_read_after_a_kill(
    spawn: Spawn, start: Start, tmp_path: Path, by: str
) -> None:
    if by == "setting":
        killed(spawn, tmp_path)
    else:
        killed(spawn, RINGFOLD_FLIGHT_DIR=str(tmp_path))
    records = replayed(start, tmp_path)
    posted = {(record.get("source"), record.get("name"), record.get("event")) for record in records}
    for name in ("a", "b"):
        assert ("peer", name, "accepted") in posted
        assert ("peer", name, "op_ended") in posted or ("peer", name, "op_started") in posted
    assert {"listening", "registered", "epoch_opened"} <= {
        event for kind, _, event in posted if kind == "master"
    }
    assert records == sorted(records, key=lambda record: record["time"])


def test_the_log_can_be_json(spawn: Spawn) -> None:
    output = killed(spawn, RINGFOLD_LOG="info", RINGFOLD_LOG_FORMAT="json")
    lines = [json.loads(line) for line in output.splitlines()]
    assert {"accepted", "epoch_opened"} <= {line.get("event") for line in lines}
    assert all({"time", "level", "target", "message"} <= line.keys() for line in lines)
