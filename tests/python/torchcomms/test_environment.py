"""Rank, size and settings from the environment."""

from __future__ import annotations

import os

import pytest
import torchcomms
from torchcomms import _environment

VARIABLES = [
    *(
        "TORCHCOMM_RANK",
        "TORCHCOMM_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
    ),
    *("PALS_RANKID", "SLURM_PROCID", "SLURM_NTASKS", "RANK", "WORLD_SIZE"),
    *(_environment.METHOD, _environment.ABORT, _environment.TIMEOUT),
]


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def rank_and_size(monkeypatch: pytest.MonkeyPatch, **variables: str) -> tuple[int, int]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return _environment.rank_and_size()


@pytest.mark.parametrize(
    "rank, size",
    [
        ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("PALS_RANKID", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("RANK", "WORLD_SIZE"),
    ],
)
def test_each_launcher_is_recognised(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    assert rank_and_size(monkeypatch, **{rank: "2", size: "5"}) == (2, 5)


def test_launchers_are_tried_in_the_documented_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank_and_size(monkeypatch, RANK="0", WORLD_SIZE="11") == (0, 11)
    assert rank_and_size(monkeypatch, SLURM_PROCID="1", SLURM_NTASKS="12") == (1, 12)
    assert rank_and_size(monkeypatch, PALS_RANKID="2", PMI_SIZE="13") == (2, 13)
    assert rank_and_size(monkeypatch, PMI_RANK="3") == (3, 13)
    assert rank_and_size(monkeypatch, OMPI_COMM_WORLD_RANK="4", OMPI_COMM_WORLD_SIZE="14") == (4, 14)
    assert rank_and_size(monkeypatch, TORCHCOMM_RANK="5", TORCHCOMM_SIZE="15") == (5, 15)


def test_the_method_restricts_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {
        **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "9", "PALS_RANKID": "2", "PMI_SIZE": "9"},
        **{"RANK": "3", "WORLD_SIZE": "9"},
    }
    assert rank_and_size(monkeypatch, **every)[0] == 1
    for method, rank in {"auto": 1, "mpi": 1, "pals": 2, "torchrun": 3}.items():
        assert rank_and_size(monkeypatch, **{_environment.METHOD: method}) == (rank, 9)
    with pytest.raises(RuntimeError, match=_environment.METHOD):
        rank_and_size(monkeypatch, **{_environment.METHOD: "guess"})


@pytest.mark.parametrize(
    "here, missing",
    [
        ("RANK", "WORLD_SIZE"),
        ("WORLD_SIZE", "RANK"),
        ("PMI_RANK", "PMI_SIZE"),
        ("PMI_SIZE", "PMI_RANK"),
        ("PALS_RANKID", "PMI_SIZE"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("TORCHCOMM_SIZE", "TORCHCOMM_RANK"),
    ],
)
def test_a_missing_variable_of_a_pair_is_named(
    monkeypatch: pytest.MonkeyPatch, here: str, missing: str
) -> None:
    with pytest.raises(RuntimeError, match=f"{missing} is not"):
        rank_and_size(monkeypatch, **{here: "1"})


def test_without_variables_the_error_lists_those_looked_for() -> None:
    with pytest.raises(RuntimeError, match="TORCHCOMM_RANK.*SLURM_PROCID.*WORLD_SIZE"):
        _environment.rank_and_size()


@pytest.mark.parametrize("rank, size", [("2", "2"), ("-1", "2"), ("x", "2"), ("0", "0"), ("0", "")])
def test_invalid_ranks_and_sizes_are_rejected(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    with pytest.raises(RuntimeError, match="RANK|WORLD_SIZE"):
        rank_and_size(monkeypatch, RANK=rank, WORLD_SIZE=size)


@pytest.mark.parametrize("text", ["1", "true", "YES", "y", " True "])
def test_true_has_several_spellings(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(_environment.ABORT, text)
    assert _environment.aborts_process() is True


@pytest.mark.parametrize("text", ["0", "false", "No", "n"])
def test_false_has_several_spellings(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(_environment.ABORT, text)
    assert _environment.aborts_process() is False


@pytest.mark.parametrize("name", [_environment.ABORT, _environment.TIMEOUT])
@pytest.mark.parametrize("text", ["maybe", "", "-1"])
def test_invalid_settings_are_rejected_when_a_communicator_is_made(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(RuntimeError, match=name):
        torchcomms.new_comm("fake", "cpu")


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_with(backend: str) -> tuple[float, bool | None]:
        comm = torchcomms.new_comm(backend, "cpu")
        comm.finalize()
        options = comm.get_options()
        assert options.timeout is not None and not isinstance(options.timeout, float)
        return options.timeout.total_seconds(), options.abort_process_on_timeout_or_error

    os.environ.update(RANK="0", WORLD_SIZE="1")
    try:
        assert made_with("gloo") == (600.0, False)
        assert made_with("nccl") == made_with("ncclx") == (600.0, True)
        monkeypatch.setenv(_environment.TIMEOUT, "12.5")
        monkeypatch.setenv(_environment.ABORT, "no")
        assert made_with("nccl") == (12.5, False)
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
