"""Peers come and go; nothing drifts, hangs or fails."""

from __future__ import annotations

import os
from pathlib import Path

from child import Spawn


def test_peers_come_and_go_while_one_thread_reduces_and_another_votes(spawn: Spawn) -> None:
    seconds = float(os.environ.get("RINGFOLD_CHURN_SECONDS", "20"))
    churn = spawn(Path(__file__).with_name("churn.py"), "--seconds", seconds, "--peers", 4)
    assert churn.wait(seconds + 200) == 0, churn.output
    assert "nothing drifted" in churn.output
