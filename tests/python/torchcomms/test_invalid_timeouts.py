"""Timeouts that no operation can have: they are refused where they are given, and harm no group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torchcomms
from ranks import Ranks
from torchcomms import ReduceOp


def refused() -> int:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), "refusing", timeout=60)
    tensor = torch.ones(4)
    others: list[Any] = [-1, -1e-9, float("nan"), timedelta(seconds=-1)]
    for timeout in others:
        for call in (
            lambda timeout=timeout: comm.all_reduce(tensor, ReduceOp.SUM, False, timeout=timeout),
            lambda timeout=timeout: comm.all_reduce(tensor, ReduceOp.SUM, True, timeout=timeout),
            lambda timeout=timeout: comm.set_timeout(timeout),
            lambda timeout=timeout: comm.split([0, 1], "child", timeout=timeout),
            lambda timeout=timeout: torchcomms.new_comm(
                "ringfold", torch.device("cpu"), "never", timeout=timeout
            ),
        ):
            with pytest.raises(ValueError, match="invalid timeout"):
                call()
    for timeout in (0, 1e-12):
        with pytest.raises(RuntimeError, match="invalid timeout"):
            comm.barrier(False, timeout=timeout)
    assert not comm.is_aborted()
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    comm.finalize()
    return int(tensor[0])


def test_a_timeout_that_is_negative_or_zero_is_refused_and_the_group_goes_on(ranks: Ranks) -> None:
    assert ranks.run(2, refused) == [2, 2]
