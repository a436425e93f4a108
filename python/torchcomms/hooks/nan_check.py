"""A hook that finds NaN before it spreads to all ranks."""

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
    """Raises RuntimeError if a tensor of an operation has a NaN; the operation then does not run on this rank.

    ``check_inputs``: checks what is sent. ``check_outputs``: checks the memory of the results before they are written. Infinities
    and integers pass.
    """

    def __init__(self, check_inputs: bool = True, check_outputs: bool = False) -> None:
        self._check_inputs = check_inputs
        self._check_outputs = check_outputs
        self._comms: weakref.WeakSet[TorchComm] = weakref.WeakSet()

    def is_enabled(self) -> bool:
        """Whether it checks anything: it is registered with a communicator that exists."""
        return bool(self._comms)

    def register_with_comm(self, comm: TorchComm) -> None:
        """Checks later operations of this communicator."""
        if not (self._check_inputs or self._check_outputs) or comm in self._comms:
            return
        self._comms.add(comm)
        comm.register_pre_hook(self._check_of(comm))

    def _check_of(self, comm: TorchComm) -> Callable[[OpName, int, Any], None]:
        # Weak: the communicator refers to the hook, and a cycle would delay its end.
        comm_ref = weakref.ref(comm)

        def check(op: OpName, op_id: int, args: Any) -> None:
            comm = comm_ref()
            if comm is None or op in _WITHOUT_TENSORS:
                return
            inputs, outputs = operands(op, args, comm.get_rank())
            # On other ranks the tensor of a broadcast is only an output.
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
    if values.is_sparse:
        values = values.coalesce().values()
    if values.element_size() == 1:  # torch does not compute with 8-bit floats
        values = values.to(torch.float32)
    # The sum needs no memory. It is NaN with any NaN, but also with infinities of both signs.
    return bool(values.sum().isnan()) and bool(values.isnan().any())
