"""Programs that end right after they have issued something."""

from __future__ import annotations

from pathlib import Path

import torch
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
