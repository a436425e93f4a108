"""Hooks: when they are called, and what they receive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torchcomms  # noqa: E402
from ranks import Ranks  # noqa: E402
from torchcomms import OpName, ReduceOp, TorchComm  # noqa: E402


@pytest.fixture
def comm() -> Iterator[TorchComm]:
    """Rank 0 of 1, where nothing has to be waited for."""
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="hooked")
    yield comm
    if not comm._is_final:
        comm.finalize()


class HookLog:
    """The calls of hooks, in order."""

    def __init__(self, comm: TorchComm) -> None:
        self.pre: list[tuple[OpName, int, Any]] = []
        self.post: list[tuple[int, Any]] = []
        self.order: list[str] = []
        self.handles = [comm.register_pre_hook(self._before), comm.register_post_hook(self._after)]

    def _before(self, op: OpName, op_id: int, args: Any) -> None:
        self.order.append("pre")
        self.pre.append((op, op_id, args))

    def _after(self, op_id: int, args: Any) -> None:
        self.order.append("post")
        self.post.append((op_id, args))


def _every_call(comm: TorchComm) -> dict[OpName, Callable[[], object]]:
    one, four = torch.ones(4), [torch.ones(4)]
    op, sync = ReduceOp.SUM, False

    def batch() -> None:
        batch = comm.batch_op_create()
        batch.send(one, 0)
        batch.recv(one, 0)
        batch.issue(sync)

    handle = comm.all_gather_p_init(one)
    return {
        OpName.send: lambda: comm.send(one, 0, sync),
        OpName.recv: lambda: comm.recv(one, 0, sync),
        OpName.broadcast: lambda: comm.broadcast(one, 0, sync),
        OpName.all_reduce: lambda: comm.all_reduce(one, op, sync),
        OpName.reduce: lambda: comm.reduce(one, 0, op, sync),
        OpName.all_gather: lambda: comm.all_gather(four, one, sync),
        OpName.all_gather_v: lambda: comm.all_gather_v(four, one, sync),
        OpName.all_gather_single: lambda: comm.all_gather_single(one, one, sync),
        OpName.reduce_scatter: lambda: comm.reduce_scatter(one, four, op, sync),
        OpName.reduce_scatter_v: lambda: comm.reduce_scatter_v(one, four, op, sync),
        OpName.reduce_scatter_single: lambda: comm.reduce_scatter_single(one, one, op, sync),
        OpName.all_to_all_single: lambda: comm.all_to_all_single(one, one, sync),
        OpName.all_to_all_v_single: lambda: comm.all_to_all_v_single(one, one, [4], [4], sync),
        OpName.all_to_all: lambda: comm.all_to_all(four, four, sync),
        OpName.barrier: lambda: comm.barrier(sync),
        OpName.scatter: lambda: comm.scatter(one, four, 0, sync),
        OpName.gather: lambda: comm.gather(four, one, 0, sync),
        OpName.gather_single: lambda: comm.gather_single(one, one, 0, sync),
        OpName.all_gather_p_init: lambda: comm.all_gather_p_init(one),
        OpName.all_gather_p_exec: lambda: comm.all_gather_p_exec(handle, one),
        OpName.all_gather_p_free: lambda: comm.all_gather_p_free(handle),
        OpName.batch_op_issue: batch,
        OpName.split: lambda: comm.split([]),
        OpName.new_window: comm.new_window,
    }


def test_each_operation_fires_one_pre_and_one_post_hook_with_one_id(comm: TorchComm) -> None:
    calls = _every_call(comm)
    log = HookLog(comm)
    for name, call in calls.items():
        call()
        assert log.order == ["pre", "post"], name
        assert log.pre[-1][0] is name
        assert log.pre[-1][1] == log.post[-1][0]
        assert log.pre[-1][2].async_op is False
        log.order.clear()
    ids = [op_id for _, op_id, _ in log.pre]
    assert ids == sorted(set(ids))
    assert {*calls, OpName.finalize} == set(OpName)


def test_pre_hooks_receive_the_arguments(comm: TorchComm) -> None:
    log = HookLog(comm)
    a, b = torch.ones(4), torch.zeros(4)

    def args(call: object) -> Any:
        return log.pre[-1][2]

    sent = args(comm.send(a, 0, True))
    assert sent.tensor is a and sent.peer == 0 and sent.async_op is True
    assert args(comm.recv(a, 3, False)).peer == 3
    assert args(comm.broadcast(a, 0, False)).root == 0
    reduced = args(comm.reduce(a, 0, ReduceOp.MAX, False))
    assert reduced.tensor is a and reduced.root == 0 and reduced.op == ReduceOp.MAX
    assert args(comm.all_reduce(a, ReduceOp.SUM, False)).tensor is a
    gathered = args(comm.all_gather([b], a, False))
    assert gathered.input is a and gathered.output[0] is b
    scattered = args(comm.scatter(b, [a], 0, False))
    assert scattered.input[0] is a and scattered.output is b and scattered.root == 0
    assert args(comm.gather_single(b, a, 0, False)).root == 0
    v = args(comm.all_to_all_v_single(b, a, [1], [2], False))
    assert v.input is a and v.output is b
    assert v.output_split_sizes == [1] and v.input_split_sizes == [2]
    split = args(comm.split([], name="part"))
    assert split.ranks == [] and split.name == "part"
    batch = comm.batch_op_create()
    batch.send(a, 0)
    assert args(batch.issue(False)).num_ops == 1
    assert args(comm.all_reduce(a, ReduceOp.SUM, False, timeout=2.5)).timeout == 2.5


def test_the_classes_of_arguments_are_public_and_named_after_the_operations(comm: TorchComm) -> None:
    log = HookLog(comm)
    calls = _every_call(comm)
    log.pre.clear()
    for call in calls.values():
        call()
    for op, _, args in log.pre:
        words = [word.capitalize() for word in op.name.split("_")]
        name = f"{''.join(words)}PreHookArgs"
        assert type(args) is getattr(torchcomms, name)
    kinds = {type(args).__name__ for _, args in log.post}
    assert kinds == {
        "CollectivePostHookArgs",
        "SplitPostHookArgs",
        "NewWindowPostHookArgs",
        "BatchOpIssuePostHookArgs",
    }


def test_finalize_fires_both_hooks_and_takes_no_id(comm: TorchComm) -> None:
    log = HookLog(comm)
    comm.barrier(False)
    comm.finalize()
    other = torchcomms.new_comm("fake", torch.device("cpu"), name="other")
    after = HookLog(other)
    other.barrier(False)
    other.finalize()
    assert [op for op, _, _ in log.pre] == [OpName.barrier, OpName.finalize]
    assert type(log.pre[-1][2]).__name__ == "FinalizePreHookArgs"
    assert type(log.post[-1][1]).__name__ == "FinalizePostHookArgs"
    assert after.pre[0][1] == log.pre[0][1] + 1


def test_ids_increase_over_all_communicators_of_the_process(comm: TorchComm) -> None:
    other = torchcomms.new_comm("fake", torch.device("cpu"), name="other")
    mine, theirs = HookLog(comm), HookLog(other)
    for _ in range(3):
        comm.barrier(False)
        other.barrier(False)
    other.finalize()
    both = [op_id for pair in zip(mine.pre, theirs.pre) for _, op_id, _ in pair]
    assert both == sorted(set(both))


def test_names_of_operations_are_hashable_and_print_as_members() -> None:
    assert len({OpName.send, OpName.send, OpName.recv}) == 2
    assert str(OpName.all_reduce).endswith(".all_reduce")


def test_an_exception_in_a_pre_hook_propagates_and_the_operation_does_not_run(ranks: Ranks) -> None:
    assert ranks.run(1, _forbidden) == [(1.0, 2, 1)]


def _forbidden() -> tuple[float, int, int]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="strict")
    posts: list[int] = []
    comm.register_post_hook(lambda op_id, args: posts.append(op_id))

    def forbid(op: OpName, op_id: int, args: Any) -> None:
        raise KeyError("not allowed")

    handle = comm.register_pre_hook(forbid)
    tensor, into = torch.ones(1), torch.zeros(1)
    refused = 0
    calls: list[Callable[[], object]] = [
        lambda: comm.all_gather_single(into, tensor, False),
        lambda: comm.barrier(True),
    ]
    for call in calls:
        try:
            call()
        except KeyError:
            refused += 1
    assert into.item() == 0.0 and not posts
    handle.remove()
    comm.all_gather_single(into, tensor, False)
    comm.finalize()
    return into.item(), refused, len(posts) - 1


def test_a_removed_hook_is_not_called_and_may_be_removed_again(comm: TorchComm) -> None:
    log = HookLog(comm)
    comm.barrier(False)
    for handle in log.handles:
        assert isinstance(handle, torchcomms.RemovableHandle)
        handle.remove()
        handle.remove()
    comm.barrier(False)
    assert len(log.pre) == len(log.post) == 1


def test_a_hook_may_remove_itself(comm: TorchComm) -> None:
    calls: list[str] = []

    def once(op: OpName, op_id: int, args: Any) -> None:
        calls.append("once")
        handle.remove()

    handle = comm.register_pre_hook(once)
    comm.register_pre_hook(lambda op, op_id, args: calls.append("always"))
    comm.barrier(False)
    comm.barrier(False)
    assert calls == ["once", "always", "always"]


def test_rejected_arguments_reach_both_hooks_and_the_post_hook_has_the_error(ranks: Ranks) -> None:
    assert ranks.run(1, _refused) == [["all_reduce", "split", "batch_op_issue"]]


def _refused() -> list[str]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="refuses")
    log = HookLog(comm)
    tensor = torch.ones(4, 4).t()
    batch = comm.batch_op_create()
    batch.send(torch.ones(1), 7)
    for call in (
        lambda: comm.all_reduce(tensor, ReduceOp.SUM, False),
        lambda: comm.split([0, 0]),
        lambda: batch.issue(False),
    ):
        with pytest.raises(RuntimeError):
            call()
    works = [getattr(args, "work", None) for _, args in log.post]
    assert [str(work.status) for work in works if work] == ["WorkStatus.ERROR"] * 2
    assert isinstance(log.post[1][1].error, RuntimeError)
    comm.barrier(False)
    comm.finalize()
    return [op.name for op, _, _ in log.pre[:3]]


def test_hooks_live_as_long_as_the_communicator_and_no_longer() -> None:
    class Hook:
        def __call__(self, *args: object) -> None: ...

    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="short")
    hook = Hook()
    alive = weakref.ref(hook)
    comm.register_pre_hook(hook)
    del hook
    gc.collect()
    assert alive() is not None
    comm.finalize()
    del comm
    assert alive() is None


def test_registered_hooks_do_not_keep_a_communicator_alive() -> None:
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="dropped")
    for hook in (torchcomms.hooks.FlightRecorderHook(isolated=True), torchcomms.hooks.NanCheckHook()):
        hook.register_with_comm(comm)
    torchcomms.hooks.clog("stderr", ["ALL"]).register_with_comm(comm)
    comm.all_reduce(torch.ones(1), ReduceOp.SUM, False)
    comm.finalize()
    alive = weakref.ref(comm)
    gc.disable()
    try:
        del comm
        assert alive() is None
    finally:
        gc.enable()


def test_hooks_see_results_of_synchronous_operations_and_work_of_asynchronous_ones(ranks: Ranks) -> None:
    assert ranks.run(2, _sees) == [[3.0, 3.0]] * 2


def _sees() -> list[float]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="seen")
    tensor = torch.full((8,), float(comm.get_rank() + 1))
    seen: list[float] = []
    handle = comm.register_post_hook(lambda op_id, args: seen.append(tensor[0].item()))
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    handle.remove()
    works: list[Any] = []
    handle = comm.register_post_hook(lambda op_id, args: works.append(args.work))
    other = torch.full((8,), float(comm.get_rank() + 1))
    comm.all_reduce(other, ReduceOp.SUM, True)
    works[0].wait()
    handle.remove()
    comm.finalize()
    return [*seen, other[0].item()]


def test_abort_hooks_run_once_before_the_error_is_raised_even_if_one_of_them_fails(ranks: Ranks) -> None:
    running = ranks.start(2, _fails)
    running.wait_for(1, "waiting")
    running.kill(1)
    survivor, dead = running.outcomes()
    assert survivor.value == (["first", "second", "raised"], "2"), survivor
    assert dead.code == -9


def _fails() -> tuple[list[str], str]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="aborted")
    events: list[str] = []

    def bad() -> None:
        events.append("first")
        raise ValueError("a bad hook")

    posts: list[int] = []
    comm.register_abort_hook(bad)
    comm.register_abort_hook(lambda: events.append("second"))
    removed = comm.register_abort_hook(lambda: events.append("removed"))
    removed.remove()
    comm.register_post_hook(lambda op_id, args: posts.append(op_id))
    print("waiting", flush=True)
    if comm.get_rank() == 1:
        comm.recv(torch.ones(1), 0, False)
    for _ in range(2):
        try:
            comm.all_reduce(torch.ones(1), ReduceOp.SUM, False)
        except RuntimeError:
            events.append("raised")
    return events[:3], str(len(posts))
