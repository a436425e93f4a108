"""Programs that end right after they have issued something."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchcomms
from blocked import leave_pid, wait_until_other_blocked
from ranks import Ranks
from torchcomms import ReduceOp


def ends_before_the_others(folder: Path) -> float:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="exit")
    # As if tensors of a device had been seen: operations are staged through host memory, on a thread.
    comm.get_backend_impl()._is_staging = True
    tensor = torch.full((1000,), comm.get_rank() + 1.0)
    if comm.get_rank() == 0:
        comm.all_reduce(tensor, ReduceOp.SUM, True)
        comm.finalize()
        leave_pid(folder, "ends")
        return 3.0
    # The exit of the other process waits for this one.
    wait_until_other_blocked(folder, "ends")
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    comm.finalize()
    return float(tensor[0])


def test_what_was_issued_before_the_end_of_a_program_is_done(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, ends_before_the_others, tmp_path, exits_fully=True) == [3.0, 3.0]


def ends_without_finalize() -> str:
    # Torch keeps the process group until the process is gone.
    dist.init_process_group("ringfold")
    dist.barrier()
    if dist.get_rank() == 1:
        return ""
    with pytest.raises(RuntimeError) as error:
        dist.recv(torch.zeros(4), 1)
    return str(error.value)


def test_a_rank_that_ends_without_finalize_has_left(ranks: Ranks) -> None:
    text = ranks.run(2, ends_without_finalize, exits_fully=True)[0]
    assert "rank 1" in text and text.endswith("left"), text
