"""The units of deploy/systemd under a real systemd: they start, say that they are ready, are restarted, and stop."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from peers import DEADLINE
from ports import free_port
from systemd import systemd

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
# The interpreter of the tests may be in a home that only root can read.
TEST_USER = (
    "[Service]\nDynamicUser=no\nUser=root\nGroup=root\nProtectHome=no\nPrivateTmp=no\nReadWritePaths=/tmp\n"
)


def test_the_units_start_and_restart_masters_and_peers(tmp_path: Path) -> None:
    port = free_port()
    units = {path.name: path.read_text() for path in UNITS.glob("*.service")}
    path = f"Environment=PYTHONPATH={os.environ.get('PYTHONPATH', '')}\n"
    logs = "StandardOutput=append:{}\nStandardError=append:{}\n".format(*[tmp_path / "%N.log"] * 2)
    quick = {"ringfold-master": "WatchdogSec=3\n", "ringfold-peer@": "Environment=OMP_NUM_THREADS=1\n"}
    for name, lines in quick.items():
        units[f"{name}.service.d/test.conf"] = TEST_USER + path + logs + lines
    command = f'#!/bin/sh\nexec {sys.executable} -m ringfold "$@"\n'
    files = {
        "usr/local/bin/ringfold": command,
        "opt/ringfold/bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        "opt/ringfold/train.py": (ROOT / "deploy" / "train.py").read_text(),
        "etc/ringfold/token": "a token of sixteen bytes and more\n",
        "etc/ringfold/master.env": f"OPTIONS=--listen 127.0.0.1:{port} --log info\n",
        "etc/ringfold/peer.env": f"RINGFOLD_MASTERS=127.0.0.1:{port}\n"
        "ARGUMENTS=--steps 150 --every 10 --pace 0.05 --replicas-min 2\n",
    }
    with systemd(tmp_path, units, files) as manager:
        manager.call("start", "ringfold-master")
        master = manager.show("ringfold-master")
        assert (master["ActiveState"], master["SubState"]) == ("active", "running")
        assert master["StatusText"] == f"master listening on 127.0.0.1:{port}"
        peers = ["ringfold-peer@0", "ringfold-peer@1"]
        manager.call("start", *peers)

        def step_of(unit: str) -> int:
            found = re.match(r"step (\d+) of 150, 2 replicas", manager.show(unit)["StatusText"])
            return int(found[1]) if found else -1

        manager.wait_until("both train", lambda: all(step_of(unit) >= 20 for unit in peers), DEADLINE)
        # A master that hangs is killed by the watchdog, and started again; a peer that is killed is started again.
        manager.kill("ringfold-master", "SIGSTOP")
        manager.kill(peers[1], "SIGKILL")
        manager.wait_until(
            "both were restarted",
            lambda: all(manager.show(unit)["NRestarts"] == "1" for unit in ("ringfold-master", peers[1])),
            DEADLINE,
        )
        manager.wait_until(
            "both ended",
            lambda: all(manager.show(unit)["ActiveState"] == "inactive" for unit in peers),
            DEADLINE,
        )
        assert {manager.show(unit)["Result"] for unit in peers} == {"success"}
        ends = [(tmp_path / f"{unit}.log").read_text() for unit in peers]
        assert len({end for text in ends for end in re.findall(r"end: step 150, model \w+", text)}) == 1, ends
        manager.call("stop", "ringfold-master")
        master = manager.show("ringfold-master")
        assert (master["ActiveState"], master["Result"]) == ("inactive", "success")
