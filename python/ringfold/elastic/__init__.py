"""The elastic training loop on top of ``pccl.Communicator``.

``Run`` joins a run, accepts new peers, waits while there are too few, keeps the state of all peers equal bit for bit,
reduces with the living peers, and leaves cleanly, also on SIGTERM. ``help(ringfold.Run)`` begins with an example.
"""

from __future__ import annotations

from ringfold.elastic.optimizer import prepare_optimizer
from ringfold.elastic.reduction import PendingReduction, ReductionResult
from ringfold.elastic.run import Run, StateRejected
from ringfold.elastic.state import Unequal

__all__ = ["ReductionResult", "PendingReduction", "StateRejected", "Run", "Unequal", "prepare_optimizer"]
