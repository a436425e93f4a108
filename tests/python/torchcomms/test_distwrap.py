"""distwrap: every operation gives the results of torch.distributed, on torch's groups and on communicators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as plain
from ranks import Ranks
from torchcomms import distwrap as dist
from versions import VERSION, exchanges_lists

Group = Any
MODES = [pytest.param(True, id="torchcomms"), pytest.param(False, id="torch")]


def _done(work: Any) -> None:
    """Waits for an asynchronous operation, which has the methods of torch's works."""
    assert isinstance(work, dist.Work)
    assert work.wait() in (True, None)
    # Works of gloo do not always tell.
    assert work.is_completed() or not dist.uses_torchcomms()


class Place:
    """This rank in a group: operations take global ranks, and results are in the order of group ranks."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.ranks = dist.get_process_group_ranks(group)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.next = self.ranks[(self.rank + 1) % self.size]
        self.last = self.ranks[(self.rank - 1) % self.size]

    def mine(self, count: int = 3, salt: float = 0.0) -> torch.Tensor:
        return self.of(self.rank, count, salt)

    def of(self, rank: int, count: int = 3, salt: float = 0.0) -> torch.Tensor:
        return torch.full((count,), 10.0 * self.ranks[rank] + salt)

    def total(self, count: int = 3) -> torch.Tensor:
        return torch.stack([self.of(rank, count) for rank in range(self.size)]).sum(0)


def reduces(here: Place) -> None:
    tensor = here.mine()
    assert dist.all_reduce(tensor, group=here.group) is None
    assert tensor.equal(here.total())
    tensor = here.mine()
    work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=here.group, async_op=True)
    assert isinstance(work, dist.Work) and isinstance(work.get_future(), torch._C.Future)
    _done(work)
    assert tensor.equal(here.of(here.size - 1))
    for root in range(here.size):
        for named in ({"dst": here.ranks[root]}, {"group_dst": root}):
            tensor = here.mine()
            dist.reduce(tensor, group=here.group, **named)
            assert here.rank != root or tensor.equal(here.total())
    part = torch.zeros(2)
    dist.reduce_scatter(part, [here.mine(2) + index for index in range(here.size)], group=here.group)
    assert part.equal(here.total(2) + here.rank * here.size)
    part.zero_()
    whole = torch.cat([here.mine(2) + index for index in range(here.size)])
    _done(dist.reduce_scatter_tensor(part, whole, group=here.group, async_op=True))
    assert part.equal(here.total(2) + here.rank * here.size)


def moves(here: Place) -> None:
    every = [here.of(rank) for rank in range(here.size)]
    for root in range(here.size):
        for named in ({"src": here.ranks[root]}, {"group_src": root}):
            tensor = here.mine()
            dist.broadcast(tensor, group=here.group, **named)
            assert tensor.equal(every[root])
            part = torch.zeros(3)
            dist.scatter(part, every if here.rank == root else None, group=here.group, **named)
            assert part.equal(here.mine())
        gathered = [torch.zeros(3) for _ in every] if here.rank == root else None
        _done(dist.gather(here.mine(), gathered, here.ranks[root], here.group, async_op=True))
        assert gathered is None or all(map(torch.equal, gathered, every))
    gathered = [torch.zeros(3) for _ in every]
    dist.all_gather(gathered, here.mine(), group=here.group)
    assert all(map(torch.equal, gathered, every))
    whole = torch.zeros(3 * here.size)
    dist.all_gather_into_tensor(whole, here.mine(), group=here.group)
    assert whole.equal(torch.cat(every))
    if hasattr(plain, "all_gather_single"):
        whole.zero_()
        dist.all_gather_single(whole, here.mine(), group=here.group)
        assert whole.equal(torch.cat(every))


def exchanges(here: Place) -> None:
    sent = [here.mine(2, index) for index in range(here.size)]
    expected = [here.of(rank, 2, here.rank) for rank in range(here.size)]
    got = [torch.zeros(2) for _ in range(here.size)]
    dist.all_to_all(got, sent, group=here.group)
    assert all(map(torch.equal, got, expected))
    whole = torch.zeros(2 * here.size)
    _done(dist.all_to_all_single(whole, torch.cat(sent), group=here.group, async_op=True))
    assert whole.equal(torch.cat(expected))
    # Rank r gets r + 1 rows from each.
    rows = here.rank + 1
    goes = [index + 1 for index in range(here.size)]
    out = torch.zeros(rows * here.size)
    dist.all_to_all_single(out, here.mine(sum(goes)), [rows] * here.size, goes, group=here.group)
    assert out.equal(torch.cat([here.of(rank, rows) for rank in range(here.size)]))


def transfers(here: Place) -> None:
    inbox = torch.zeros(3)
    works = [dist.isend(here.mine(), here.next, here.group), dist.irecv(inbox, here.last, here.group)]
    for work in works:
        _done(work)
    assert inbox.equal(here.of((here.rank - 1) % here.size))
    if here.rank == 0:
        dist.send(here.mine(), here.next, group=here.group, tag=3)
    elif here.rank == 1:
        assert dist.recv(inbox, here.last, group=here.group, tag=3) == here.last
        assert inbox.equal(here.of(0))
    inbox.zero_()
    other = torch.zeros(2)
    before = (here.rank - 1) % here.size
    ops = [
        dist.P2POp(dist.irecv, inbox, here.last, here.group),
        dist.P2POp(dist.isend, here.mine(), here.next, here.group),
        plain.P2POp(plain.isend, here.mine(2), here.next, here.group),
        dist.P2POp(dist.irecv, other, group=here.group, group_peer=before),
    ]
    assert all(isinstance(op, plain.P2POp) for op in ops) and "irecv" in repr(ops[0])
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert inbox.equal(here.of(before)) and other.equal(here.of(before, 2))
    with pytest.raises((ValueError, RuntimeError), match="op"):
        dist.P2POp(dist.send, inbox, here.last, here.group)


def objects(here: Place) -> None:
    every: list[Any] = [None] * here.size
    dist.all_gather_object(every, {"rank": here.rank, "of": here.ranks}, group=here.group)
    assert every == [{"rank": rank, "of": here.ranks} for rank in range(here.size)]
    root = here.ranks[-1]
    gathered: list[Any] | None = [None] * here.size if here.rank == here.size - 1 else None
    dist.gather_object("x" * here.rank, gathered, dst=root, group=here.group)
    assert gathered is None or gathered == ["x" * rank for rank in range(here.size)]
    output: list[Any] = [None]
    given = [f"for {rank}" for rank in range(here.size)] if here.rank == here.size - 1 else None
    dist.scatter_object_list(output, given, src=root, group=here.group)
    assert output == [f"for {here.rank}"]
    news: list[Any] = [1, "two", {3}] if here.rank == here.size - 1 else [None] * 3
    dist.broadcast_object_list(news, src=root, group=here.group)
    assert news == [1, "two", {3}]
    if here.rank == 0:
        dist.send_object_list([7], dst=here.next, group=here.group)
    elif here.rank == 1:
        dist.recv_object_list(output, src=here.last, group=here.group)
        assert output == [7]


def barriers(here: Place) -> None:
    dist.barrier(here.group)
    _done(dist.barrier(group=here.group, async_op=True))
    tensors = [here.mine(), here.mine()]
    with dist._coalescing_manager(group=here.group):
        for tensor in tensors:
            dist.all_reduce(tensor, group=here.group)
    assert all(tensor.equal(here.total()) for tensor in tensors)


KINDS: list[Callable[[Place], None]] = [reduces, moves, exchanges, transfers, objects, barriers]


def do_everything(use_torchcomms: bool) -> int:
    dist.init_process_group("gloo", use_torchcomms=use_torchcomms)
    assert dist.is_available() and dist.is_initialized() and plain.is_initialized()
    assert dist.uses_torchcomms() is use_torchcomms
    assert dist.group.WORLD is plain.group.WORLD and dist.ReduceOp is plain.ReduceOp
    assert dist.get_backend() == "gloo" and dist.Backend is plain.Backend
    groups: list[Group] = [None]
    if dist.get_world_size() == 4:
        # Group ranks differ from global ones.
        half = dist.new_group([1, 3])
        other = dist.new_group([0, 2])
        groups.append(half if dist.get_rank() % 2 else other)
        assert (half if dist.get_rank() % 2 == 0 else other) is dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_world_size(groups[-1]) == 2 and dist.get_rank(groups[-1]) == dist.get_rank() // 2
    done = 0
    for group in groups:
        if use_torchcomms:
            operations: list[str] = []
            comm = dist.get_comm(group)
            comm.register_pre_hook(lambda op, number, args, seen=operations: seen.append(op.name))
        for kind in KINDS:
            kind(Place(group))
            done += 1
        if use_torchcomms:
            # Older versions of torch send the parts of batches and lists one by one.
            more = {"all_to_all_v_single", "batch_op_issue"} if VERSION >= (2, 14) else set()
            assert {"all_reduce", "broadcast", *more} <= set(operations)
    dist.barrier()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    return done


@pytest.mark.parametrize("use_torchcomms", [MODES[0], pytest.param(False, id="torch", marks=exchanges_lists)])
@pytest.mark.parametrize("world", [2, 4])
def test_operations_are_those_of_torch(ranks: Ranks, world: int, use_torchcomms: bool) -> None:
    expected = len(KINDS) * (2 if world == 4 else 1)
    assert ranks.run(world, do_everything, use_torchcomms) == [expected] * world


def test_names_are_those_of_torch() -> None:
    for name in (
        *(
            "init_process_group",
            "new_group",
            "split_group",
            "destroy_process_group",
            "get_rank",
            "get_world_size",
        ),
        *(
            "get_process_group_ranks",
            "is_initialized",
            "is_available",
            "group",
            "GroupMember",
            "ProcessGroup",
        ),
        *("ReduceOp", "Store", "HashStore", "Work", "all_reduce", "P2POp", "batch_isend_irecv", "new_window"),
        *("reduce_scatter_quantized", "get_mem_allocator", "register_mem_pool"),
    ):
        assert name in dist.__all__ and getattr(dist, name) is not None
    assert dist.TCPStore is plain.TCPStore and "get_backend" in dir(dist)
    with pytest.raises(AttributeError, match="torchcomms.distwrap.*nothing"):
        _ = dist.nothing
    import inspect

    for function in (dist.all_reduce, dist.all_to_all_single, dist.scatter, dist.broadcast_object_list):
        torchs = getattr(plain, function.__name__)
        assert inspect.signature(function) == inspect.signature(torchs)
        assert function is not torchs
