"""The examples without a GPU, and the README's program, run as a user runs them."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from child import Child
from ports import free_port
from world import Spawn

pytest.importorskip("numpy")

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "python" / "mscclpp"


@pytest.mark.parametrize("transport", ["SharedMemory", "Ethernet"])
@pytest.mark.parametrize("ranks", [3, 5])
def test_what_each_rank_puts_goes_around_the_ring(spawn: Spawn, transport: str, ranks: int) -> None:
    at = f"127.0.0.1:{free_port()}"
    output = spawn(EXAMPLES / "ring.py", "--ranks", ranks, "--transport", transport, "--at", at).succeed(120)
    for rank in range(ranks):
        assert f"rank {rank} of {ranks}: {ranks} rounds of 1048576 bytes by {transport}, all right" in output


def test_the_examples_have_help(spawn: Spawn) -> None:
    assert "--transport" in spawn(EXAMPLES / "ring.py", "--help").succeed(60)
    refused = spawn(EXAMPLES / "ring.py", "--ranks", 2)
    assert refused.wait(60) == 2 and "3 ranks or more" in refused.output


def test_an_example_for_gpus_reports_a_missing_gpu(spawn: Spawn) -> None:
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("cupy is installed")
    refused = spawn(EXAMPLES / "all_reduce.py")
    assert refused.wait(60) == 1
    assert "needs a GPU and cupy" in refused.output and "Traceback" not in refused.output


def test_the_all_reduces_sums_are_those_of_32_bits() -> None:
    spec = importlib.util.spec_from_file_location("all_reduce_example", EXAMPLES / "all_reduce.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.sums([1, 2], 1) == 3 and example.sums([1, 2, 3], 3) == 54
    assert example.sums([10, 11, 12, 13, 14, 15, 16], 10) != 91 * 7**9, "too large to be exact"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The README's program about channels."""
    section = re.search(
        r"^## Channels.*?(?=^## )", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert section is not None
    found = re.search(r"^```python ranks=2\n(.*?)^```", section[0], re.DOTALL | re.MULTILINE)
    assert found is not None
    path = tmp_path / "program.py"
    path.write_text(found[1] + "print(f'rank {rank} is right', flush=True)\n")
    return path


def test_the_program_of_the_readme_runs(spawn: Spawn, program: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [spawn(program, env={**place, "RANK": str(rank)}) for rank in range(2)]
    for rank, child in enumerate(ranks):
        assert f"rank {rank} is right" in child.succeed(60)


def test_the_program_of_the_readme_runs_under_torchrun(start: Callable[..., Child], program: Path) -> None:
    # Its agent listens at MASTER_PORT itself.
    pytest.importorskip("torch")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output = start(sys.executable, *words, program).succeed(120)
    assert "rank 0 is right" in output and "rank 1 is right" in output
