"""A process group that calls its one backend at once. Imports torch: only backends' makers import this."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._autograd import _profiler_enabled
from torch._C._distributed_c10d import Backend, DebugLevel, ProcessGroup, get_debug_level

# Operations that Python programs call again and again.
_QUICK = (
    *("allreduce", "broadcast", "reduce", "barrier", "send", "recv", "recv_anysource"),
    *("allgather", "all_gather_single", "_allgather_base"),
    *("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"),
    *("alltoall", "all_to_all_single", "alltoall_base", "gather", "scatter"),
)
# With these set, torch watches operations on their way through its own code.
_WATCHES = ("TORCH_DIST_NAN_CHECK", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


class QuickGroup(ProcessGroup):
    """A process group whose calls go straight to its backend: torch's way there, by its dispatcher, takes longer than an operation.

    Where someone watches that way (a profiler, a mode that traces or counts operations), it is taken all the same.
    """

    def __init__(self, store: Any, backend: Any) -> None:
        super().__init__(store, backend.rank(), backend.size())
        self._backend = backend
        kind = ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), kind, backend)


def _quick(name: str) -> Callable[..., Any]:
    usual = getattr(ProcessGroup, name)

    def operation(self: QuickGroup, *arguments: Any, **named: Any) -> Any:
        if _len_torch_dispatch_stack() or _profiler_enabled():
            return usual(self, *arguments, **named)
        return getattr(self._backend, name)(*arguments, **named)

    # By the name of the function that calls it, torch's own one sees that it must not come back here.
    operation.__code__ = operation.__code__.replace(co_name=name)
    operation.__name__ = name
    operation.__doc__ = usual.__doc__
    return operation


for _name in _QUICK:
    if hasattr(ProcessGroup, _name):
        setattr(QuickGroup, _name, _quick(_name))


def quick_group(backend: Any, options: Any) -> ProcessGroup | None:
    """A group with this backend for all devices; None where torch has to make the group itself, because other backends may be part
    of it, or because it is to be watched."""
    plain = getattr(options, "process_group", None)
    if plain is None or not isinstance(backend, Backend) or get_debug_level() == DebugLevel.DETAIL:
        return None
    if any(os.environ.get(name, "0") != "0" for name in _WATCHES):
        return None
    types = torch.distributed.Backend.backend_type_map
    custom = ProcessGroup.BackendType.CUSTOM
    strangers = {name for name, kind in types.items() if kind == custom} - {"ringfold", "fake", "threaded"}
    # Torch takes a group that it is given for the whole, and forgets the backends of other devices.
    if strangers or plain.name() != "custom" or plain._device_types:
        return None
    group = QuickGroup(options.store, backend)
    if plain.bound_device_id is not None:
        group.bound_device_id = plain.bound_device_id
    return group
