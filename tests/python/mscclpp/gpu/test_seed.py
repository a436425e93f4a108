"""The seed's program under mpirun, after its repairs, our examples, and the tutorial's program: with as many ranks as fit a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from child import Child
from test_bootstrap import free_port

pytestmark = pytest.mark.usefixtures("needs_gpu")

ROOT = Path(__file__).parents[4]
SEED = Path(__file__).parents[2] / "seeds" / "mscclpp_003.py"
EXAMPLES = ROOT / "examples" / "python" / "mscclpp"
TUTORIAL = ROOT / "docs" / "python" / "mscclpp-tutorial.md"
# Eight ranks that share a GPU without its service take turns.
SECONDS = 40.0

# The seed's memory is zeros from end to end: each rank's part is filled before, and all parts are looked at afterwards.
FILLED = """
import runpy, sys
import cupy
import mscclpp.utils
from mpi4py import MPI

rank, ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
made, real = [], mscclpp.utils.GpuBuffer

def filled(elements, dtype):
    memory = real(elements, dtype=dtype)
    assert not memory.any()
    part = elements // ranks
    memory[rank * part : (rank + 1) * part] = rank + 1
    cupy.cuda.runtime.deviceSynchronize()
    made.append(memory)
    return memory

mscclpp.utils.GpuBuffer = filled
runpy.run_path(sys.argv[1], run_name="__main__")
part = made[0].size // ranks
for other in range(ranks):
    got = made[0][other * part : (other + 1) * part]
    assert bool((got == other + 1).all()), (rank, other, got[:4])
print(f"rank {rank} has all parts", flush=True)
"""

Mpirun = Callable[[int], tuple[str, ...]]
Start = Callable[..., Child]


@pytest.fixture(autouse=True)
def needs_cupy() -> None:
    pytest.importorskip("cupy", reason="cupy is not installed")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_seeds_program_puts_every_part_into_all_others(start: Start, mpirun: Mpirun, ranks: int) -> None:
    output = start(*mpirun(ranks), sys.executable, "-c", FILLED, SEED).succeed(SECONDS)
    assert output.count("has all parts") == ranks


@pytest.mark.parametrize("ranks", [2])
def test_the_seeds_program_runs_as_it_stands(start: Start, mpirun: Mpirun, ranks: int) -> None:
    start(*mpirun(ranks), sys.executable, SEED).succeed(SECONDS)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_example_puts_every_part_into_all_others(start: Start, mpirun: Mpirun, ranks: int) -> None:
    output = start(*mpirun(ranks), sys.executable, EXAMPLES / "put_all.py", "--rounds", "5").succeed(SECONDS)
    for rank in range(ranks):
        assert f"rank {rank} of {ranks}: 5 rounds" in output


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_example_of_an_all_reduce_is_right_in_a_graph(start: Start, ranks: int) -> None:
    output = start(sys.executable, EXAMPLES / "all_reduce.py", "--ranks", str(ranks)).succeed(SECONDS)
    print(output)
    assert re.search(rf"^{ranks} ranks, 1024 bytes: [0-9.]+ us a call, all right$", output, re.MULTILINE)


def test_the_program_of_the_tutorial_swaps_from_a_kernel(start: Start, tmp_path: Path) -> None:
    page = TUTORIAL.read_text()
    source = re.search(r"^```cuda\n([^`]*void swap.*?)^```", page, re.DOTALL | re.MULTILINE)
    program = re.search(r"^```py-fragment\n(import os\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert source is not None and program is not None
    (tmp_path / "swap.cu").write_text(source[1])
    # In the folder of the program, as the page says.
    (tmp_path / "swap.py").write_text(f"import os; os.chdir({str(tmp_path)!r})\n{program[1]}")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        start(sys.executable, tmp_path / "swap.py", env={**place, "RANK": str(rank)}) for rank in range(2)
    ]
    for child in ranks:
        assert child.succeed(SECONDS).strip().endswith("[10, 11]")
