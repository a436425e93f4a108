"""A process group that calls its backend directly, without torch's dispatcher. Imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._autograd import _profiler_enabled
from torch._C._distributed_c10d import Backend, DebugLevel, ProcessGroup, get_debug_level

from torchcomms._dynamo import skip_in_dynamo

# Operations that programs call often.
_DIRECT = (
    *("allreduce", "broadcast", "reduce", "barrier", "send", "recv", "recv_anysource"),
    *("allgather", "all_gather_single", "_allgather_base"),
    *("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"),
    *("alltoall", "all_to_all_single", "alltoall_base", "gather", "scatter"),
)
# With these set, torch observes operations in its dispatcher.
_OBSERVERS = ("TORCH_DIST_NAN_CHECK", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


class DirectGroup(ProcessGroup):
    """A process group whose methods call its backend directly: torch's dispatcher takes longer than an operation.

    The dispatcher is used while something observes it: a profiler, or a mode that traces or counts operations.
    """

    def __init__(self, store: Any, backend: Any, devices: tuple[str, ...]) -> None:
        super().__init__(store, backend.rank(), backend.size())
        self._backend = backend
        # A group of torch's own class for the dispatcher: the methods of this class call the overrides below.
        self._observed = ProcessGroup(store, backend.rank(), backend.size())
        kind = ProcessGroup.BackendType.CUSTOM
        for group in (self, self._observed):
            group._set_default_backend(kind)
            for device in devices:
                group._register_backend(torch.device(device), kind, backend)

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        self._observed._set_group_name(name)


def _direct(name: str) -> Callable[..., Any]:
    def operation(self: DirectGroup, *arguments: Any, **named: Any) -> Any:
        is_observed = _len_torch_dispatch_stack() or _profiler_enabled()
        return getattr(self._observed if is_observed else self._backend, name)(*arguments, **named)

    skip_in_dynamo(cast(FunctionType, operation))
    operation.__name__ = name
    operation.__doc__ = getattr(ProcessGroup, name).__doc__
    return operation


for _name in _DIRECT:
    if hasattr(ProcessGroup, _name):
        setattr(DirectGroup, _name, _direct(_name))


def direct_group(
    backend: Any, options: Any, devices: tuple[str, ...] = ("cpu", "cuda")
) -> ProcessGroup | None:
    """A group with this backend for all its devices.

    None if torch has to make the group itself: other backends may be part of it, or it is observed.
    """
    plain = getattr(options, "process_group", None)
    if plain is None or not isinstance(backend, Backend) or get_debug_level() == DebugLevel.DETAIL:
        return None
    if any(os.environ.get(name, "0") != "0" for name in _OBSERVERS):
        return None
    types = torch.distributed.Backend.backend_type_map
    custom = ProcessGroup.BackendType.CUSTOM
    # Those of distwrap are never mixed with others.
    names = {name for name, kind in types.items() if kind == custom and not name.startswith("distwrap_")}
    others = names - {"ringfold", "fake", "threaded"}
    # Torch uses a group that it is given as it is, without backends for other devices.
    if others or plain.name() != "custom" or plain._device_types:
        return None
    group = DirectGroup(options.store, backend, devices)
    if plain.bound_device_id is not None:
        group.bound_device_id = plain.bound_device_id
    return group
