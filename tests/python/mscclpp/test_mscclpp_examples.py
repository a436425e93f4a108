"""The example without a GPU runs as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from world import Spawn

pytest.importorskip("numpy")

EXAMPLES = Path(__file__).parents[3] / "examples" / "python" / "mscclpp"


@pytest.mark.parametrize("transport", ["SharedMemory", "Ethernet"])
@pytest.mark.parametrize("ranks", [3, 5])
def test_what_each_rank_puts_goes_around_the_ring(spawn: Spawn, transport: str, ranks: int) -> None:
    output = spawn(EXAMPLES / "ring.py", "--ranks", ranks, "--transport", transport).succeed(120)
    for rank in range(ranks):
        assert f"rank {rank} of {ranks}: {ranks} rounds of 1048576 bytes by {transport}, all right" in output


def test_the_examples_tell_what_they_take(spawn: Spawn) -> None:
    assert "--transport" in spawn(EXAMPLES / "ring.py", "--help").succeed(60)
    refused = spawn(EXAMPLES / "ring.py", "--ranks", 2)
    assert refused.wait(60) == 2 and "3 ranks or more" in refused.output
