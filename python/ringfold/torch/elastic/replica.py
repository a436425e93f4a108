"""The ranks of this replica, which decide together."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore


class Replica:
    """A replica of one or more ranks. Those of several are started together, as by ``torchrun``; rank *i* of each replica is in peer
    group *i*."""

    def __init__(self) -> None:
        if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        is_several = dist.is_initialized() and dist.get_world_size() > 1
        self.ranks = dist.get_world_size() if is_several else 1
        self.rank = dist.get_rank() if is_several else 0
        self._control = self.new_group()
        self.id: int = self.gather([secrets.randbits(62) + 1])[0][0]
        """A random number: a replica that is started again has another one."""

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group of the ranks. One of a single rank is made if there is none."""
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        group = dist.group.WORLD
        assert group is not None
        return group

    def new_group(self) -> dist.ProcessGroup | None:
        """Another process group of the ranks, for tensors in host memory. All ranks call it. None if there is only one."""
        if self.ranks == 1:
            return None
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        return group

    def gather(self, values: Sequence[int]) -> list[list[int]]:
        """The values of all ranks. All of them call it, with equally many."""
        if self._control is None:
            return [list(values)]
        mine = torch.tensor(values, dtype=torch.int64)
        gathered = [torch.empty_like(mine) for _ in range(self.ranks)]
        try:
            dist.all_gather(gathered, mine, group=self._control)
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} lost another rank of its replica: the replica has to be started again"
            ) from error
        return [row.tolist() for row in gathered]

    def any(self, flag: bool) -> bool:
        """Whether the flag of any rank is set."""
        return any(row[0] for row in self.gather([flag]))
