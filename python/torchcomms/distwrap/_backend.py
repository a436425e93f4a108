"""The backends of torch.distributed behind groups that use torchcomms: one communicator per type of device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from torchcomms import _registry
from torchcomms._c10d_backend import BackendWrapper
from torchcomms._c10d_group import direct_group
from torchcomms._c10d_operations import Operations
from torchcomms._environment import as_rank
from torchcomms._new_comm import new_comm
from torchcomms.distwrap._permission import require_permission

PREFIX = "distwrap_"
"""The names of these backends begin with it, followed by the type of device and the backend of the communicator."""

_PRIVATE_OPERATIONS = ("_allgather_base", "_reduce_scatter_base")
# Backends for one type of device.
_DEVICES = {"nccl": "cuda", "ncclx": "cuda", "xccl": "xpu"}
# Torch keeps one backend of each type in a group. Types that are not CUSTOM are only names here.
_TYPES = {"cpu": "CUSTOM", "cuda": "NCCL", "xpu": "XCCL"}


class GuardedBackend(BackendWrapper):
    """A communicator as a backend that only functions of distwrap may call."""


def _guarded(name: str) -> Callable[..., Any]:
    usual = getattr(BackendWrapper, name)

    @functools.wraps(usual)
    def operation(self: GuardedBackend, *arguments: Any, **named: Any) -> Any:
        require_permission(name)
        return usual(self, *arguments, **named)

    return operation


for _name in vars(Operations):
    if not _name.startswith("_") or _name in _PRIVATE_OPERATIONS:
        setattr(GuardedBackend, _name, _guarded(_name))


def backends_by_device(backend: str) -> dict[str, str]:
    """The backend of each type of device.

    >>> backends_by_device("cpu:gloo,cuda:nccl")
    {'cpu': 'gloo', 'cuda': 'nccl'}
    >>> backends_by_device("nccl")
    {'cuda': 'nccl'}
    """
    if not isinstance(backend, str) or not backend:
        raise ValueError(f"invalid backend {backend!r}: must be a name, or pairs as in 'cpu:gloo,cuda:nccl'")
    found: dict[str, str] = {}
    if ":" not in backend:
        name = backend.lower()
        found = dict.fromkeys([_DEVICES[name]] if name in _DEVICES else _devices(), name)
    for pair in backend.lower().split(",") if ":" in backend else ():
        device, colon, name = (part.strip() for part in pair.partition(":"))
        if not device or not name or device in found:
            raise ValueError(f"invalid backend {backend!r}: must be pairs as in 'cpu:gloo,cuda:nccl'")
        found[device] = name
    for name in found.values():
        if not _registry._is_backend_registered(name) and _registry.registered_class(name) is None:
            raise _registry.unknown_backend(name)
    return found


def _devices() -> list[str]:
    """The types of devices of this host."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def registered(backends: dict[str, str]) -> str:
    """The backends in the words of torch.distributed, registered there."""
    if len(backends) > 1 and not issubclass(GuardedBackend, Backend):
        raise RuntimeError(
            f"unsupported by torch {torch.__version__}: communicators for several types of devices in one group, "
            f"{' and '.join(backends)}; name one, as in 'cuda:ringfold', or use torch 2.14 or later"
        )
    is_alone = len(backends) == 1
    pairs = []
    for device, name in backends.items():
        ours = f"{PREFIX}{'only_' if is_alone else ''}{device}_{name}"
        if ours not in dist.Backend.backend_list:
            make = functools.partial(_new_backend, device, name, is_alone)
            dist.Backend.register_backend(ours, make, extended_api=True, devices=[device])
            kinds = dist.ProcessGroup.BackendType
            dist.Backend.backend_type_map[ours] = getattr(kinds, _TYPES.get(device, "UCC"))
        pairs.append(f"{device}:{ours}")
    return ",".join(pairs)


def _new_backend(device: str, name: str, is_alone: bool, options: Any, given: Any) -> Any:
    """Makes the communicator of a group for a type of device. Torch calls it on all ranks of the group."""
    with as_rank(options.group_rank, options.group_size):
        comm = new_comm(
            name,
            _device(device),
            name=f"group {options.group_id} on {device}",
            timeout=options.timeout,
            store=options.store,
            is_high_priority_stream=getattr(given, "is_high_priority_stream", None),
            hints=getattr(given, "hints", None),
        )
    backend = GuardedBackend(comm)
    return (direct_group(backend, options, (device,)) if is_alone else None) or backend


def _device(kind: str) -> torch.device:
    module = getattr(torch, kind, None)
    if kind == "cpu" or module is None or not module.is_available():
        return torch.device(kind)
    return torch.device(kind, module.current_device())
