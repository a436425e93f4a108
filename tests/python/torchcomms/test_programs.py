"""The programs of TorchComms' documentation, and our examples: they run as they stand, but for the repairs marked in them."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from child import Child, python
from ports import free_port
from programs import run_on_a_cpu, run_program, tells
from ranks import Outcome, Ranks

torch = pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).parents[3]
SEEDS = ROOT / "tests" / "python" / "seeds"
EXAMPLES = ROOT / "examples" / "python" / "torchcomms"
SECONDS = 120.0
NAMES = [
    "asynchronous",
    "basic",
    "cuda_graph",
    "custom_options",
    "hooks",
    "kernel_window",
    "reconfigure",
    "window",
]
# The ranks know rank and size only.
FILE_ALONE = {"MASTER_ADDR": None, "MASTER_PORT": None, "LOCAL_RANK": None, "LOCAL_WORLD_SIZE": None}

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def logs(outcomes: list[Outcome]) -> list[str]:
    """What the ranks have printed; all have ended well."""
    for one in outcomes:
        assert one.is_good, f"rank {one.rank} ended with {one.code}: {one.error}\n{one.log}"
    return [one.log for one in outcomes]


def start_all(ranks: Ranks, world: int, name: str, *words: str) -> list[str]:
    """What the ranks of an example print."""
    return logs(ranks.start(world, run_program, str(EXAMPLES / f"{name}.py"), *words).outcomes(SECONDS))


# --- the documentation's -----------------------------------------------------------------------------------------


def test_the_basic_program_runs_on_cpus_with_a_file_store_alone(ranks: Ranks, tmp_path: Path) -> None:
    program = str(SEEDS / "torchcomm_basic_004.py")
    running = ranks.start(2, run_on_a_cpu, program, str(tmp_path / "store"), env=FILE_ALONE, exits_fully=True)
    for rank, log in enumerate(logs(running.outcomes(SECONDS))):
        assert f"Rank {rank}: tensor([1., 1., 1., 1., 1., 1., 1., 1., 1., 1.])" in log


def test_the_asynchronous_program_runs_on_cpus_with_a_file_store_alone(ranks: Ranks, tmp_path: Path) -> None:
    program = str(SEEDS / "torchcomm_asynchronous_004.py")
    running = ranks.start(2, run_on_a_cpu, program, str(tmp_path / "store"), env=FILE_ALONE, exits_fully=True)
    # Rank 0 has sent zeros, for that is its number; nothing else has come.
    assert all(f"received: {[0.0] * 10}" in log for log in logs(running.outcomes(SECONDS)))


def test_both_programs_may_use_one_file_one_after_the_other(ranks: Ranks, tmp_path: Path) -> None:
    """As they stand they name the same file, and the first run leaves it behind."""
    store = tmp_path / "store"
    for name in ("basic", "asynchronous", "basic"):
        program = str(SEEDS / f"torchcomm_{name}_004.py")
        logs(ranks.start(2, run_on_a_cpu, program, str(store), env=FILE_ALONE).outcomes(SECONDS))


@needs_gpu
@pytest.mark.parametrize("name", ["basic", "asynchronous", "custom_options"])
def test_the_programs_run_on_a_gpu_as_they_stand(
    name: str, start: Callable[..., Child], tmp_path: Path
) -> None:
    text = (SEEDS / f"torchcomm_{name}_004.py").read_text()
    program = tmp_path / "program.py"
    program.write_text(text.replace("/tmp/torchcomm_test", str(tmp_path / "store")))
    start(*torchrun(2), program).succeed(SECONDS)


@needs_gpu
@pytest.mark.parametrize("world", [1, 2])
def test_an_all_reduce_is_captured_in_a_cuda_graph(world: int, start: Callable[..., Child]) -> None:
    start(*torchrun(world), SEEDS / "torchcomm_cuda_graph_004.py").succeed(SECONDS)


def torchrun(world: int) -> list[str]:
    """The command line of torchrun for this many ranks."""
    return [
        *python("")[:1],
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)),
    ]


# --- our examples ------------------------------------------------------------------------------------------------


def test_every_example_has_help(ranks: Ranks) -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*NAMES, "start"])
    for name in NAMES:
        [log] = [one.log for one in ranks.start(1, tells, str(EXAMPLES / f"{name}.py")).outcomes(SECONDS)]
        assert "--ranks RANKS" in log and "--device DEVICE" in log, log


def test_an_example_that_is_started_by_hand_starts_its_ranks(start: Callable[..., Child]) -> None:
    environment = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    child = start(*python(EXAMPLES / "basic.py", "--ranks", 3), env=environment)
    output = child.succeed(SECONDS)
    assert all(f"rank {rank} of 3: {[3.0] * 10}" in output for rank in range(3)), output


def test_an_example_runs_under_torchrun(start: Callable[..., Child]) -> None:
    child = start(*torchrun(2), EXAMPLES / "asynchronous.py", env={"OMP_NUM_THREADS": "1"})
    output = child.succeed(SECONDS)
    for rank in range(2):
        assert f"rank {rank} has received {1 - rank}, and the sum is 2" in output


def test_the_basic_example_uses_a_file_store(ranks: Ranks, tmp_path: Path) -> None:
    words = ("--store", str(tmp_path / "store"))
    program = str(EXAMPLES / "basic.py")
    running = ranks.start(2, run_program, program, *words, env=FILE_ALONE)
    for rank, log in enumerate(logs(running.outcomes(SECONDS))):
        assert f"rank {rank} of 2: {[1.0] * 10}" in log


def test_the_options_example_names_the_missing_rank(ranks: Ranks) -> None:
    first, second = start_all(ranks, 2, "custom_options")
    assert "rank 0: the last rank is 1" in first and "rank 1: the last rank is 1" in second
    assert re.search(r"rank 0: .*rank 1", first), first


def test_the_window_example_puts_rows_into_the_next_rank(ranks: Ranks) -> None:
    for rank, log in enumerate(start_all(ranks, 3, "window")):
        left = (rank - 1) % 3
        table = [[float(left)] * 4 if row == left else [0.0] * 4 for row in range(3)]
        assert f"rank {rank}: {table}" in log


def test_the_reconfigure_example_goes_on_without_the_rank_that_was_killed(
    ranks: Ranks, tmp_path: Path
) -> None:
    words = (str(EXAMPLES / "reconfigure.py"), "--store", str(tmp_path / "store"))
    first, victim, last = ranks.start(3, run_program, *words).outcomes(SECONDS)
    assert victim.code == -signal.SIGKILL
    for survivor, me in zip(logs([first, last]), (0, 2)):
        assert f"rank {me}, step 4: 3 ranks, mean 2\n" in survivor
        assert f"rank {me}, step 9: 2 ranks, mean 2\n" in survivor
        assert re.search(rf"rank {me}, step 5: .*rank 1", survivor), survivor


def test_the_hooks_example_shows_calls_signatures_and_the_record(ranks: Ranks) -> None:
    first, _ = start_all(ranks, 2, "hooks")
    assert "calls: {'all_reduce': 3, 'broadcast': 3}" in first
    assert "sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum" in first
    assert first.count("ringfold:all_reduce") == 3


@needs_gpu
@pytest.mark.parametrize("name", ["basic", "asynchronous", "custom_options", "hooks"])
def test_the_examples_run_on_a_gpu(name: str, start: Callable[..., Child]) -> None:
    start(*torchrun(2), EXAMPLES / f"{name}.py", "--device", "cuda:0").succeed(SECONDS)


@needs_gpu
def test_the_kernel_window_example_puts_rows_into_the_next_rank(start: Callable[..., Child]) -> None:
    output = start(*torchrun(2), EXAMPLES / "kernel_window.py").succeed(SECONDS)
    for rank in range(2):
        table = [[float(row)] * 4 if row != rank else [0.0] * 4 for row in range(2)]
        assert f"rank {rank}: {table}" in output
