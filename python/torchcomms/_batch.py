"""Sends and receives that are issued together. A rank's own ones are copies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from torchcomms._options import BatchP2POptions
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._comm import TorchComm


class P2POpType(Enum):
    """The direction of a transfer."""

    SEND = 0
    RECV = 1


@dataclass(slots=True)
class P2POp:
    """One transfer of a batch."""

    type: P2POpType
    tensor: torch.Tensor
    peer: int
    tag: int | None = None
    """None is the tag of the batch's hints, or of the communicator."""


class BatchSendRecv:
    """A batch, made by ``comm.batch_op_create()``. Sends and receives of a pair of ranks match in the order they were added."""

    __slots__ = ("_comm", "ops")

    def __init__(self, comm: TorchComm) -> None:
        self._comm = comm
        self.ops: list[P2POp] = []
        """The transfers that are not issued yet."""

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        """Adds a send."""
        self.ops.append(P2POp(P2POpType.SEND, tensor, dst))

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        """Adds a receive."""
        self.ops.append(P2POp(P2POpType.RECV, tensor, src))

    def issue(self, async_op: bool, options: BatchP2POptions | None = None) -> TorchWork:
        """Issues all transfers and empties the batch. The work ends when all have ended."""
        if not self.ops:
            raise RuntimeError("invalid batch: it has no operations to issue")
        ops, self.ops = self.ops, []
        return self._comm._issue_batch(ops, async_op, options or BatchP2POptions())
