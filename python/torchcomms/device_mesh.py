"""Device meshes with one communicator per dimension, for FSDP, tensor parallelism and DTensor.

comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="main")
rank = comm.get_rank()
row, column = divmod(rank, 2)
columns = comm.split([column, column + 2], name="columns")      # of a mesh of 2 x 2
rows = comm.split([2 * row, 2 * row + 1], name="rows")
mesh = init_device_mesh((columns, rows), ("replicate", "shard"), _global_comm=comm)
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from torchcomms._comm import TorchComm

__all__ = ["init_device_mesh"]


def init_device_mesh(
    mesh_dim_comms: tuple[TorchComm, ...],
    mesh_dim_names: tuple[str, ...],
    _global_comm: TorchComm | None = None,
) -> DeviceMesh:
    """A mesh with one dimension per communicator. A rank's coordinate in a dimension is its rank in that communicator.

    ``_global_comm`` has all ranks of the mesh. It is needed for several dimensions if ``torch.distributed`` is not initialized, and
    becomes the default process group then. With it, ranks may have any layout; without it, the layout is row-major.

    The default process group has the name of its communicator, and each dimension's group that of the dimension. A name that
    another group has already is followed by a number.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    comms = tuple(mesh_dim_comms)
    if not comms or len(comms) != len(mesh_dim_names):
        raise ValueError(
            f"invalid mesh: {len(comms)} communicators and {len(mesh_dim_names)} names; it needs a name for each dimension"
        )
    if _global_comm is None and len(comms) == 1 and not dist.is_initialized():
        _global_comm = comms[0]
    sizes = [comm.get_size() for comm in comms]
    coordinates = tuple(comm.get_rank() for comm in comms)
    if _global_comm is not None:
        mesh = _gathered(_global_comm, sizes, coordinates)
        if not dist.is_initialized():
            world = _create_torchcomm_process_group(_global_comm, _free_name(_global_comm.get_name()))
            dist.distributed_c10d._update_default_pg(world)
    elif dist.is_initialized():
        mesh = torch.arange(torch.Size(sizes).numel()).view(sizes)
        if int(mesh[coordinates]) != dist.get_rank():
            raise RuntimeError(
                f"invalid mesh of {sizes}: rank {dist.get_rank()} would be {int(mesh[coordinates])} in row-major layout; pass the "
                "communicator of all ranks as _global_comm"
            )
    else:
        raise RuntimeError(
            "a mesh with several dimensions needs the communicator of all its ranks: pass it as _global_comm, or initialize "
            "torch.distributed first"
        )
    groups = []
    for dim, (comm, name) in enumerate(zip(comms, mesh_dim_names, strict=True)):
        along = mesh[(*coordinates[:dim], slice(None), *coordinates[dim + 1 :])].tolist()
        ranks = {rank: number for number, rank in enumerate(along)}
        groups.append(_create_torchcomm_process_group(comm, _free_name(name), global_ranks_mapping=ranks))
    device = comms[0].get_device().type
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device, mesh, mesh_dim_names=tuple(mesh_dim_names))
    return DeviceMesh.from_group(groups, device, mesh, mesh_dim_names=tuple(mesh_dim_names))


def _gathered(comm: TorchComm, sizes: list[int], coordinates: tuple[int, ...]) -> Any:
    """The mesh, gathered from the coordinates of all ranks."""
    import torch

    world = comm.get_size()
    if torch.Size(sizes).numel() != world:
        raise ValueError(f"invalid mesh of {sizes}: _global_comm has {world} ranks")
    device = comm.get_device()
    gathered = torch.empty(world, len(sizes), dtype=torch.int64, device=device)
    comm.all_gather_single(gathered, torch.tensor([coordinates], device=device), False)
    mesh = torch.full(sizes, -1)
    for rank, position in enumerate(gathered.tolist()):
        mesh[tuple(position)] = rank
    if int(mesh.min()) < 0:
        raise RuntimeError(f"invalid mesh: two ranks have the same coordinates in {gathered.tolist()}")
    return mesh


def _free_name(name: str) -> str:
    """The name, with a number if a process group has it already. All ranks make their groups in the same order."""
    from torch.distributed import distributed_c10d as c10d

    taken = set(c10d._world.pg_names.values())
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
    return next(one for one in names if one not in taken)


def _create_torchcomm_process_group(
    comm: TorchComm,
    group_name: str,
    backend_str: str = "torchcomm",
    global_ranks_mapping: dict[int, int] | None = None,
) -> dist.ProcessGroup:
    """A process group of a communicator, registered in torch by name.

    ``global_ranks_mapping`` maps global ranks to ranks of the communicator; by default they are equal.
    """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore, _register_process_group
    from torch.distributed import distributed_c10d as c10d

    from torchcomms._backend_wrapper import _BackendWrapper

    backend: Any = _BackendWrapper(comm)
    store = HashStore()
    devices = {"cpu", comm.get_device().type}
    if isinstance(backend, dist.ProcessGroup):
        group: dist.ProcessGroup = backend
    else:
        group = dist.ProcessGroup(store, comm.get_rank(), comm.get_size())
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        for device in sorted(devices):
            group._register_backend(torch.device(device), kind, backend)
    name = c10d.GroupName(group_name)
    group._set_group_name(name)
    group._set_group_desc("undefined")
    world, tag = c10d._world, f"ptd:{group_name}"
    world.pg_map[group] = (backend_str, store)
    world.pg_names[group] = name
    world.pg_backend_config[group] = ",".join(f"{device}:{backend_str}" for device in sorted(devices))
    world.pg_group_ranks[group] = global_ranks_mapping or {rank: rank for rank in range(comm.get_size())}
    world.pg_to_tag[group] = tag
    world.tags_to_pg.setdefault(tag, []).append(group)
    world.tags_to_pg.setdefault("", []).append(group)
    _register_process_group(name, group)
    return group


def _flatten_with_comm(
    mesh: DeviceMesh,
    mesh_dim_name: str,
    comm: TorchComm,
    global_ranks: list[int],
    layout: Any,
) -> DeviceMesh:
    """One dimension in place of several. ``comm`` has its ranks, with ``global_ranks`` in this order.

    The root mesh then finds it by name.
    """
    from torch.distributed.device_mesh import DeviceMesh

    root = mesh._get_root_mesh()
    if mesh_dim_name in (root.mesh_dim_names or ()):
        raise ValueError(f"invalid dimension {mesh_dim_name!r}: the mesh has it already")
    ranks = {rank: number for number, rank in enumerate(global_ranks)}
    group = _create_torchcomm_process_group(comm, _free_name(mesh_dim_name), global_ranks_mapping=ranks)
    flat = DeviceMesh(
        root.device_type,
        _layout=layout,
        _rank_map=root._rank_map,
        mesh_dim_names=(mesh_dim_name,),
        _root_mesh=root,
        _init_backend=False,
    )
    flat._dim_group_names = [group.group_name]
    for one in (flat, root):
        getattr(one, "_pg_registry", {})[group.group_name] = group
    root._flatten_mapping[mesh_dim_name] = flat
    return flat
