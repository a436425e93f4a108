"""One operation, as it goes from a communicator's method to its backend: all of them take this one road."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from torchcomms._op_name import OpName
from torchcomms._reduce_op import ReduceOp

if TYPE_CHECKING:
    import torch

    Tensors = torch.Tensor | list[torch.Tensor] | None


@dataclass(slots=True)
class Call:
    """What was asked for. Where an operation works in place, ``input is output``."""

    op: OpName
    async_op: bool
    input: Tensors = None
    output: Tensors = None
    peer: int = -1
    """The root, the source or the destination."""
    reduce: ReduceOp | None = None
    input_split_sizes: list[int] | None = None
    output_split_sizes: list[int] | None = None
    hints: dict[str, str] | None = None
    timeout: timedelta | float | None = None
