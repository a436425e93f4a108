"""Meshes whose dimensions are communicators."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torchcomms
from ranks import Ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torchcomms.device_mesh import _create_torchcomm_process_group, _flatten_with_comm, init_device_mesh

CPU = torch.device("cpu")


def _new(name: str) -> torchcomms.TorchComm:
    return torchcomms.new_comm("ringfold", CPU, name=name)


def use_a_mesh_of_two_dimensions() -> Any:
    comm = _new("main")
    row, column = divmod(comm.get_rank(), 2)
    columns = comm.split([column, column + 2], name="columns")
    rows = comm.split([2 * row, 2 * row + 1], name="rows")
    assert columns is not None and rows is not None
    mesh = init_device_mesh((columns, rows), ("replicate", "shard"), _global_comm=comm)
    assert dist.is_initialized() and dist.get_rank() == comm.get_rank() and dist.get_world_size() == 4
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]] and mesh.mesh_dim_names == ("replicate", "shard")
    assert mesh.get_local_rank("replicate") == row and mesh.get_local_rank("shard") == column

    assert dist.group.WORLD is not None and dist.group.WORLD.group_name == "main"
    assert [mesh.get_group(name).group_name for name in ("replicate", "shard")] == ["replicate", "shard"]
    again = init_device_mesh((columns, rows), ("replicate", "shard"), _global_comm=comm)
    assert again.get_group("shard").group_name == "shard_1"
    one = torch.tensor([float(comm.get_rank())])
    dist.all_reduce(one, group=mesh.get_group("shard"))
    assert one.item() == [1.0, 5.0][row]

    whole = torch.arange(8.0).reshape(4, 2)
    parts = distribute_tensor(whole, mesh, [Replicate(), Shard(0)])
    assert parts.to_local().tolist() == whole[2 * column : 2 * column + 2].tolist()
    assert parts.redistribute(mesh, [Replicate(), Replicate()]).to_local().equal(whole)
    assert parts.sum().full_tensor().item() == 28.0

    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=mesh)
    loss = model(torch.full((2, 4), float(comm.get_rank()))).square().mean()
    loss.backward()
    flat = _flatten_with_comm(mesh, "all", comm, [0, 1, 2, 3], _flat_layout(mesh))
    assert flat.get_group() is mesh["all"].get_group() and flat.size() == 4
    assert flat.get_group().group_name == "all"
    total = torch.ones(1)
    dist.all_reduce(total, group=flat.get_group())
    dist.destroy_process_group()
    assert not dist.is_initialized()
    return total.item()


def _flat_layout(mesh: Any) -> Any:
    layout = mesh._layout
    return type(layout)([layout.collapse()]) if hasattr(layout, "collapse") else layout.coalesce()


def test_a_mesh_of_two_dimensions_shards_and_redistributes(ranks: Ranks) -> None:
    assert ranks.run(4, use_a_mesh_of_two_dimensions) == [4.0] * 4


def use_meshes_of_one_dimension() -> None:
    comm = _new("main")
    mesh = init_device_mesh((comm,), ("all",))
    assert mesh.size() == comm.get_size() and mesh.get_rank() == comm.get_rank()
    whole = torch.arange(6.0)
    assert distribute_tensor(whole, mesh, [Shard(0)]).full_tensor().equal(whole)

    group = _create_torchcomm_process_group(comm, "mine")
    assert isinstance(group, dist.ProcessGroup) and group.group_name == "mine"
    c10d = dist.distributed_c10d
    assert c10d._resolve_process_group("mine") == group and c10d._world.pg_to_tag[group] == "ptd:mine"
    assert dist.get_process_group_ranks(group) == list(range(comm.get_size()))
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    assert one.item() == comm.get_size()
    dist.destroy_process_group()


def test_a_mesh_of_one_dimension_needs_nothing_else(ranks: Ranks) -> None:
    ranks.run(2, use_meshes_of_one_dimension)


def lay_ranks_out_otherwise() -> Any:
    comm = _new("main")
    # Ranks 0 and 2 are the first row.
    row, column = comm.get_rank() % 2, comm.get_rank() // 2
    rows, columns = comm.split([row, row + 2]), comm.split([2 * column, 2 * column + 1])
    assert rows is not None and columns is not None
    for wrong in ((), (columns,)):
        try:
            init_device_mesh(wrong, ("x", "y"))
        except ValueError as error:
            assert "a name for each" in str(error)
        else:
            raise AssertionError("it was taken")
    try:
        init_device_mesh((columns, rows), ("x", "y"))
    except RuntimeError as error:
        assert "_global_comm" in str(error)
    mesh = init_device_mesh((columns, rows), ("x", "y"), _global_comm=comm)
    dist.destroy_process_group()
    return mesh.mesh.tolist()


def test_ranks_may_be_laid_out_in_any_way(ranks: Ranks) -> None:
    assert ranks.run(4, lay_ranks_out_otherwise) == [[[0, 2], [1, 3]]] * 4
