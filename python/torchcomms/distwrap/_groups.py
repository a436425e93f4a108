"""Process groups, with torch.distributed alone or with communicators of torchcomms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d as c10d

from torchcomms._c10d_backend import backend_of
from torchcomms._comm import TorchComm
from torchcomms.distwrap._backend import GuardedBackend, backends_by_device, registered


def init_process_group(
    backend: str | None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: torch.device | int | None = None,
    use_torchcomms: bool = False,
    **others: Any,
) -> None:
    """Initializes torch.distributed, with its arguments.

    With ``use_torchcomms`` the default group and all groups made later by :func:`new_group` and :func:`split_group` have a
    communicator of torchcomms for each type of device in ``backend``, which runs the operations. ``device_id`` is ignored then.
    ``pg_options`` may have ``is_high_priority_stream`` and ``hints``.
    """
    if not isinstance(backend, str) or not backend:
        raise ValueError(f"invalid backend {backend!r}: backend must be specified, such as 'gloo'")
    common: dict[str, Any] = {
        "init_method": init_method,
        "timeout": timeout,
        "world_size": world_size,
        "rank": rank,
        "store": store,
        "group_name": group_name,
        "pg_options": pg_options,
        **others,
    }
    if not use_torchcomms:
        dist.init_process_group(backend, device_id=device_id, **common)
        return
    if others.get("enable_reconfigure"):
        raise RuntimeError(
            "unsupported with use_torchcomms: enable_reconfigure; use torchcomms.new_comm(..., enable_reconfigure=True)"
        )
    backends = backends_by_device(backend)
    dist.init_process_group(registered(backends), **common)
    _set_names(c10d._get_default_group(), backend, backends)


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: torch.device | None = None,
    **others: Any,
) -> Any:
    """Makes a group of some ranks, as ``torch.distributed.new_group`` does. It uses torchcomms if the default group does."""
    common: dict[str, Any] = {
        "ranks": ranks,
        "timeout": timeout,
        "pg_options": pg_options,
        "use_local_synchronization": use_local_synchronization,
        "group_desc": group_desc,
        **others,
    }
    world = c10d._get_default_group()
    if not uses_torchcomms(world):
        return dist.new_group(backend=backend, device_id=device_id, **common)
    name = backend or c10d._world.pg_map[world][0]
    backends = backends_by_device(name)
    group = dist.new_group(backend=registered(backends), **common)
    if isinstance(group, dist.ProcessGroup):
        _set_names(group, name, backends)
    return group


def split_group(
    parent_pg: dist.ProcessGroup | None = None,
    split_ranks: list[list[int]] | None = None,
    *arguments: Any,
    backend: str | None = None,
    **named: Any,
) -> Any:
    """Splits a group, as ``torch.distributed.split_group`` does. The new group uses torchcomms if its parent does.

    Then its ``backend`` is that of the parent.
    """
    if backend is not None and not uses_torchcomms(parent_pg):
        # Torch takes it from 2.15 on.
        named["backend"] = backend
    elif backend is not None:
        parent = c10d._world.pg_map[parent_pg or c10d._get_default_group()][0]
        if backend.lower() != parent:
            raise RuntimeError(
                f"unsupported backend {backend!r} in split_group: the parent has {parent!r}; use new_group(..., backend=)"
            )
    return dist.split_group(parent_pg, split_ranks, *arguments, **named)


def _set_names(group: dist.ProcessGroup, backend: str, backends: dict[str, str]) -> None:
    """Makes ``get_backend()`` and ``get_backend_config()`` return the names that the program uses."""
    _, store = c10d._world.pg_map[group]
    c10d._world.pg_map[group] = (backend.lower(), store)
    c10d._world.pg_backend_config[group] = ",".join(f"{device}:{name}" for device, name in backends.items())


def uses_torchcomms(group: dist.ProcessGroup | None = None) -> bool:
    """Whether communicators of torchcomms run the operations of a group."""
    return isinstance(backend_of(group or c10d._get_default_group()), GuardedBackend)


def backend_for(
    function: str, group: dist.ProcessGroup | None = None, device: str | None = None
) -> GuardedBackend:
    """The backend of a group for a type of device, for a function that needs torchcomms."""
    group = group or c10d._get_default_group()
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError(f"invalid group in {function}: this rank is not a member of it")
    if not uses_torchcomms(group):
        raise RuntimeError(
            f"{function} needs a group that uses torchcomms: call torchcomms.distwrap.init_process_group(..., "
            "use_torchcomms=True)"
        )
    backend = backend_of(group, device)
    if not isinstance(backend, GuardedBackend) or device not in (None, backend.get_comm().get_device().type):
        raise RuntimeError(f"invalid device {device!r} in {function}: the group has no communicator for it")
    return backend


def get_comm(group: dist.ProcessGroup | None = None, device: str | torch.device | None = None) -> TorchComm:
    """The communicator of a group for a type of device; by default that of an accelerator, if the group has one."""
    kind = None if device is None else torch.device(device).type
    return backend_for("get_comm", group, kind).get_comm()
