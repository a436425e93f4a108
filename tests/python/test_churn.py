"""Peers come and go; nothing drifts, hangs or fails."""

from __future__ import annotations

import os
from pathlib import Path

from child import Spawn


def test_peers_come_and_go_while_one_thread_reduces_and_another_votes(spawn: Spawn) -> None:
    default = 180 if "RINGFOLD_LONG" in os.environ else 10
    seconds = float(os.environ.get("RINGFOLD_CHURN_SECONDS", default))
    churn = spawn(Path(__file__).with_name("churn.py"), "--seconds", seconds, "--peers", 4)
    assert churn.wait(seconds + 200) == 0, churn.output
    assert "nothing drifted" in churn.output
