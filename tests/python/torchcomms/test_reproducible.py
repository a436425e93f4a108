"""Reproducible and checked reductions of torchcomms and torch.distributed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchcomms
from ranks import Ranks
from torchcomms import ReduceOp
from training import process_group

# Each order gives another sum.
VALUES = [1.0, 1e8, -1e8]


def sum_of(media: str) -> float:
    hints = {"ringfold::reproducible": "true", "ringfold::media": media}
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), "sums", timeout=30.0, hints=hints)
    data = torch.tensor([VALUES[comm.get_rank()]])
    comm.all_reduce(data, ReduceOp.SUM, False)
    comm.finalize()
    return data.item()


@pytest.mark.parametrize("media", ["tcp", "shared"])
def test_a_hint_makes_the_order_that_of_the_ranks(ranks: Ranks, media: str) -> None:
    first, second, third = (torch.tensor(value) for value in VALUES)
    expected = ((first + second) + third).item()
    assert expected != (first + (second + third)).item()
    assert [outcome.value for outcome in ranks.start(3, sum_of, media).outcomes()] == [expected] * 3


def sum_of_torch(folder: Path) -> float:
    with process_group("ringfold", folder):
        data = torch.tensor([VALUES[dist.get_rank()]])
        dist.all_reduce(data)
        return data.item()


def sums_with_options(folder: Path) -> list[float]:
    import ringfold.torch

    options = ringfold.torch.Options(reproducible=True, integrity="payloads")
    sums = []
    with process_group("ringfold", folder, pg_options=options):
        for group in (None, dist.new_group(pg_options=options)):
            data = torch.tensor([VALUES[dist.get_rank()]])
            dist.all_reduce(data, group=group)
            sums.append(data.item())
        with pytest.raises(RuntimeError, match="reproducable"):
            dist.new_group(pg_options=ringfold.torch.Options(reproducable=True))
    return sums


def test_options_make_the_order_of_torch_distributed_that_of_the_ranks(ranks: Ranks, tmp_path: Path) -> None:
    first, second, third = (torch.tensor(value) for value in VALUES)
    env = {"RINGFOLD_SHARED_MEMORY": "false"}
    expected = [((first + second) + third).item()] * 2
    assert ranks.run(3, sums_with_options, tmp_path, env=env) == [expected] * 3


def test_a_variable_makes_the_order_of_torch_distributed_that_of_the_ranks(
    ranks: Ranks, tmp_path: Path
) -> None:
    first, second, third = (torch.tensor(value) for value in VALUES)
    # Over TCP the order is not that of the ranks by itself.
    env = {"RINGFOLD_REPRODUCIBLE": "true", "RINGFOLD_SHARED_MEMORY": "false"}
    outcomes = ranks.start(3, sum_of_torch, tmp_path, env=env).outcomes()
    assert [outcome.value for outcome in outcomes] == [((first + second) + third).item()] * 3


def checked_sum(media: str, checks: str) -> tuple[float, bool]:
    hints = {"ringfold::integrity": checks, "ringfold::media": media}
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), "sums", timeout=30.0, hints=hints)
    data = torch.full((50_000,), float(comm.get_rank() + 1))
    comm.all_reduce(data, ReduceOp.SUM, False)
    later = comm.all_reduce(data, ReduceOp.MAX, True)
    later.wait()
    child = comm.split([0, 1, 2], "child")
    child.broadcast(data, 0, False)
    has_board = comm._backend._group.is_shared
    child.finalize()
    comm.finalize()
    assert len(set(data.tolist())) == 1
    return data[0].item(), has_board


@pytest.mark.parametrize("checks", ["payloads", "results", "all"])
@pytest.mark.parametrize("media", ["tcp", "shared"])
def test_a_hint_makes_a_communicator_check(ranks: Ranks, media: str, checks: str) -> None:
    assert ranks.run(3, checked_sum, media, checks) == [(6.0, False)] * 3


def unequal_checks() -> str:
    hints = {"ringfold::integrity": "payloads"} if int(os.environ["RANK"]) == 1 else {}
    try:
        torchcomms.new_comm("ringfold", torch.device("cpu"), "sums", timeout=30.0, hints=hints)
    except RuntimeError as error:
        return str(error)
    return ""


def test_ranks_that_check_different_things_cannot_form_a_communicator(ranks: Ranks) -> None:
    for error in ranks.run(2, unequal_checks):
        assert re.search("rank 1 has payloads, rank 0 has none; it must be the same on all ranks", error), (
            error
        )


def torch_checks(folder: Path) -> float:
    with process_group("ringfold", folder):
        data = torch.ones(50_000)
        dist.all_reduce(data)
        return data.sum().item()


def test_a_variable_makes_torch_distributed_check(ranks: Ranks, tmp_path: Path) -> None:
    env = {"RINGFOLD_INTEGRITY": "all"}
    assert ranks.run(2, torch_checks, tmp_path, env=env) == [100_000.0] * 2
