"""The files for Prometheus and Grafana in deploy/monitoring use metrics that a master has, and are valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pccl
import pytest
from peers import DEADLINE
from test_http import ask
from variants import is_long

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def metrics() -> str:
    with pccl.MasterNode("127.0.0.1:0", http="0") as master:
        return str(ask(master.http_address, "/metrics"))


def test_all_files_and_the_documentation_name_metrics_that_exist() -> None:
    text = metrics()
    families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    known = set(families)
    for name, kind in families.items():
        if kind == "histogram":
            known |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    for path in [*FOLDER.iterdir(), OPERATIONS]:
        # Names of settings and files begin alike.
        used = set(re.findall(r"(?<![\w-])ringfold_[a-z_]+", path.read_text()))
        assert used <= known, f"{path.name}: unknown metrics {used - known}"
    documented = set(re.findall(r"`(ringfold_[a-z_]+)", OPERATIONS.read_text()))
    assert set(families) <= documented, f"not documented: {set(families) - documented}"


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    assert all(target["expr"] for panel in panels for target in panel["targets"])


def test_promtool_accepts_the_rules_the_configuration_and_the_metrics() -> None:
    if not is_long():
        pytest.skip("the long variant: needs promtool")
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    for words in (
        ["check", "rules", str(FOLDER / "ringfold-alerts.yml")],
        ["check", "config", str(FOLDER / "prometheus.yml")],
    ):
        done = subprocess.run(
            ["promtool", *words], capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=metrics(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
