"""Reproducible reductions of torchcomms."""

from __future__ import annotations

import pytest
import torch
import torchcomms
from ranks import Ranks
from torchcomms import ReduceOp

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
