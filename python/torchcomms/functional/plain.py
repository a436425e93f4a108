"""A communicator for ``torch.distributed``, which has its own works and gradients."""

from __future__ import annotations

from typing import Any

from torchcomms._call import Call
from torchcomms._comm import TorchComm
from torchcomms._comm_operations import CommOperations
from torchcomms._work import TorchWork
from torchcomms.functional import originals


class PlainOperations(CommOperations):
    """A communicator whose operations return plain works and record no gradients, as if nothing was enabled."""

    def __init__(self, comm: TorchComm) -> None:
        self._comm = comm

    def _issue(self, call: Call) -> TorchWork:
        return originals.issue(self._comm, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)
