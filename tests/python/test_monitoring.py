"""The files for Prometheus and Grafana in deploy/monitoring use metrics that a master has, and are valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pccl
import pytest
from peers import DEADLINE, connected, together
from test_http import ask
from variants import is_long

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def metrics() -> str:
    """Those of a run with a ring that was measured."""
    with pccl.MasterNode("127.0.0.1:0", http="0") as master, connected(master.address, 2) as peers:
        together(*(peer.optimize_topology for peer in peers))
        # The second answer counts the first.
        return [str(ask(master.http_address, "/metrics")) for _ in range(2)][1]


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
    for path in FOLDER.iterdir():
        for name, labels in re.findall(
            r"(ringfold_[a-z_]+)\{([^}]*)\}", path.read_text().replace('\\"', '"')
        ):
            for label, values in re.findall(r'(\w+)=~?"([^"]*)"', labels):
                # Those of the scrape configuration are not the master's.
                for value in values.split("|") if label not in ("run", "instance") else ():
                    pattern = rf'^{name}\{{[^}}]*{label}="{value}"'
                    assert re.search(pattern, text, re.MULTILINE), f"{path.name}: {name}{{{labels}}}"
    documented = set(re.findall(r"`(ringfold_[a-z_]+)", OPERATIONS.read_text()))
    assert set(families) <= documented, f"not documented: {set(families) - documented}"


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    assert all(target["expr"] for panel in panels for target in panel["targets"])


def test_promtool_accepts_all_files_and_the_metrics(tmp_path: Path) -> None:
    if not is_long():
        pytest.skip("the long variant: needs promtool")
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    # The expressions of the dashboard, as rules.
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [
        {"record": f"panel:{index}", "expr": re.sub(r"\$__\w+", "5m", expression).replace("$run", ".*")}
        for index, expression in enumerate(expressions)
    ]
    panels = tmp_path / "panels.yml"
    panels.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    for words in (
        ["check", "rules", str(panels)],
        ["check", "rules", "--lint-fatal", str(FOLDER / "ringfold-alerts.yml")],
        ["test", "rules", str(FOLDER / "ringfold-alerts-test.yml")],
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
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_every_alert_has_a_test() -> None:
    rules = (FOLDER / "ringfold-alerts.yml").read_text()
    tests = (FOLDER / "ringfold-alerts-test.yml").read_text()
    fire = re.findall(r"alertname: (\w+)\n\s+exp_alerts:", tests)
    assert sorted(fire) == sorted(re.findall(r"- alert: (\w+)", rules))
