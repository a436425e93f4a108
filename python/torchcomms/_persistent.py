"""Persistent all-gathers: prepared once, run often."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torchcomms._comm import TorchComm


class AllGatherHandle:
    """A prepared all-gather; the result of ``all_gather_p_init``."""

    __slots__ = ("_comm", "_output")

    def __init__(self, comm: TorchComm, output: torch.Tensor) -> None:
        self._comm = comm
        self._output: torch.Tensor | None = output

    def output_for(self, comm: TorchComm) -> torch.Tensor:
        """Its output tensor. Raises if it was freed, or belongs to another communicator."""
        if self._output is None:
            raise RuntimeError("the persistent all-gather was freed")
        if comm is not self._comm:
            raise RuntimeError("the persistent all-gather belongs to another communicator")
        return self._output

    def free(self) -> None:
        """Drops the tensor."""
        self._output = None
