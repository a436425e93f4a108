"""The elastic training loop: what one would write around ``pccl.Communicator`` anyway.

``Run`` joins a run, lets newcomers in, waits while there are too few peers, keeps the state of all peers equal bit for
bit, reduces with whoever is alive, and leaves cleanly, also on SIGTERM. ``help(ringfold.Run)`` begins with an example.
"""

from __future__ import annotations

from ringfold.elastic.optimizer import prepare_optimizer
from ringfold.elastic.reducing import Reduced, Reducing
from ringfold.elastic.run import Rejected, Run
from ringfold.elastic.state import Unequal

__all__ = ["Reduced", "Reducing", "Rejected", "Run", "Unequal", "prepare_optimizer"]
