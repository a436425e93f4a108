"""Finds values that are not a number before they spread to all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchcomms._op_name import OpName
from torchcomms.hooks._operands import operands, tensors

if TYPE_CHECKING:
    import torch

    from torchcomms._comm import TorchComm


class NanCheckHook:
    """Looks for NaN in the tensors of each operation before it runs, and raises RuntimeError if there is one: the
    operation does not run on this rank. Tensors of integers are not looked at; infinities are fine.

    ``check_inputs``: in what is sent. ``check_outputs``: in the memory that results will be written to, before that.
    """

    def __init__(self, check_inputs: bool = True, check_outputs: bool = False) -> None:
        self._check_inputs = check_inputs
        self._check_outputs = check_outputs
        self._comms: weakref.WeakSet[TorchComm] = weakref.WeakSet()

    def is_enabled(self) -> bool:
        """Whether it looks at anything."""
        return self._check_inputs or self._check_outputs

    def register_with_comm(self, comm: TorchComm) -> None:
        """Checks all operations of this communicator from now on."""
        if not self.is_enabled() or comm in self._comms:
            return
        self._comms.add(comm)
        comm.register_pre_hook(self._check_of(comm))

    def _check_of(self, comm: TorchComm) -> Callable[[OpName, int, Any], None]:
        # The communicator keeps the hook; if the hook kept the communicator, neither would go when it is dropped.
        watched = weakref.ref(comm)

        def check(op: OpName, op_id: int, args: Any) -> None:
            comm = watched()
            if comm is None or op in _WITHOUT_TENSORS:
                return
            inputs, outputs = operands(op, args, comm.get_rank())
            # What others hold before a broadcast is overwritten: it is an output alone.
            is_input = op is not OpName.broadcast or args.root == comm.get_rank()
            if self._check_inputs and is_input:
                _require_numbers(tensors(inputs), "input", op, comm.get_name())
            if self._check_outputs:
                _require_numbers(tensors(outputs), "output", op, comm.get_name())

        return check


_WITHOUT_TENSORS = frozenset({OpName.barrier, OpName.finalize, OpName.new_window, OpName.split})


def _require_numbers(every: list[torch.Tensor], side: str, op: OpName, comm: str) -> None:
    for index, tensor in enumerate(every):
        if _has_nan(tensor):
            place = f" (tensor {index} of {len(every)})" if len(every) > 1 else ""
            raise RuntimeError(f"NaN found in the {side} of {op.name} on communicator {comm!r}{place}")


def _has_nan(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return False
    import torch

    values = tensor.detach()
    if values.element_size() == 1:  # nothing is computed with floats of 8 bits
        values = values.to(torch.float32)
    # A sum with a NaN in it is one, and takes no memory to find. It may be NaN without one: infinities cancel out.
    return bool(values.sum().isnan()) and bool(values.isnan().any())
