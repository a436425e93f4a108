"""The seed's program under mpirun, after its repairs, and our example of the same: with as many ranks as fit a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from child import Child

pytestmark = pytest.mark.usefixtures("needs_gpu")

ROOT = Path(__file__).parents[4]
SEED = Path(__file__).parents[2] / "seeds" / "mscclpp_003.py"
EXAMPLE = ROOT / "examples" / "python" / "mscclpp" / "put_all.py"
SECONDS = 240.0

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


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_seeds_program_runs_as_it_stands(start: Start, mpirun: Mpirun, ranks: int) -> None:
    start(*mpirun(ranks), sys.executable, SEED).succeed(SECONDS)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_example_puts_every_part_into_all_others(start: Start, mpirun: Mpirun, ranks: int) -> None:
    output = start(*mpirun(ranks), sys.executable, EXAMPLE, "--rounds", "5").succeed(SECONDS)
    for rank in range(ranks):
        assert f"rank {rank} of {ranks}: 5 rounds" in output
