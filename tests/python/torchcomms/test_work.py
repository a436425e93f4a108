"""Operations in flight, and what a communicator of several ranks does beside them."""

from __future__ import annotations

import copy
import gc
import io
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torchcomms
from ranks import Ranks, await_reached, reach
from torchcomms import ReduceOp, TorchComm, WorkStatus

CPU = torch.device("cpu")


def made(name: str = "c", timeout: float = 20.0) -> TorchComm:
    return torchcomms.new_comm("ringfold", CPU, name, timeout=timeout)


def waited() -> None:
    comm = made()
    rank, size = comm.get_rank(), comm.get_size()
    tensor = torch.full((5,), float(rank))
    work = comm.all_reduce(tensor, ReduceOp.SUM, False)
    assert work.is_completed() and work.status is WorkStatus.COMPLETED
    work.wait()

    # The others wait for this rank: the work is in progress.
    if rank == 0:
        work = comm.recv(torch.empty(1), 1, True)
        assert not work.is_completed() and work.status is WorkStatus.INPROGRESS
        comm.send(torch.ones(1), 1, False)
        work.wait()
        work.wait()
        work.wait_blocking()
        assert work.is_completed() and work.status is WorkStatus.COMPLETED
    elif rank == 1:
        comm.recv(torch.empty(1), 0, False)
        comm.send(torch.ones(1), 0, False)

    # Works are waited for in any order, or never; tensors can be dropped at once.
    for _ in range(20):
        comm.all_reduce(torch.ones(1000), ReduceOp.SUM, True)
        comm.broadcast(torch.ones(1000), 0, True)
    gc.collect()
    last = torch.ones(3)
    works = [comm.all_reduce(last, ReduceOp.SUM, True) for _ in range(3)]
    for work in reversed(works):
        work.wait()
    assert last.tolist() == [float(size) ** 3] * 3

    assert copy.copy(comm) is comm
    memo: dict[int, object] = {}
    assert copy.deepcopy(comm, memo) is comm and memo[id(comm)] is comm
    comm.finalize()


def test_works_can_be_waited_for_repeatedly_late_or_never(ranks: Ranks) -> None:
    ranks.run(3, waited)


def staged() -> None:
    comm = made()
    rank, size = comm.get_rank(), comm.get_size()
    # As if tensors of a device had been seen before: operations run on threads now.
    comm.get_backend_impl()._is_staging = True
    sent, total = torch.full((1_000_000,), float(rank)), torch.ones(1_000_000)
    received, again = torch.empty_like(sent), torch.empty_like(sent)
    works = [
        comm.all_reduce(total, ReduceOp.SUM, True),
        comm.send(sent, (rank + 1) % size, True),
        comm.recv(received, (rank - 1) % size, True),
    ]
    window = comm.new_window(torch.zeros(10))
    for work in works:
        work.wait()
    batch = comm.batch_op_create()
    batch.send(sent, (rank + 1) % size)
    batch.recv(again, (rank - 1) % size)
    batch.issue(False)
    before = float((rank - 1) % size)
    assert total[0] == size and received[-1] == before and again[-1] == before
    window.tensor_deregister()
    comm.all_reduce(total, ReduceOp.SUM, True)
    comm.finalize()


def test_transfers_through_the_hosts_memory_wait_for_nothing_but_the_other_rank(ranks: Ranks) -> None:
    ranks.run(3, staged)


def issued_and_left(folder: Path) -> float:
    """Rank 0 finalizes before its data was received."""
    comm = made()
    tensor = torch.full((200_000,), 7.0)
    if comm.get_rank() == 0:
        for _ in range(5):
            comm.send(tensor, 1, True)
        comm.finalize()
        reach(folder, "finalized")
        return 0.0
    # If finalizing waited until this rank has received, neither would end.
    await_reached(folder, "finalized")
    total = 0.0
    for _ in range(5):
        comm.recv(tensor, 0, False)
        total += float(tensor[-1])
    comm.finalize()
    return total


def test_finalize_does_not_wait_and_others_get_what_was_issued(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, issued_and_left, tmp_path) == [0.0, 35.0]


def left_early(folder: Path) -> None:
    """Rank 0 finalizes when the others have."""
    comm = made()
    comm.barrier(False)
    if comm.get_rank() == 0:
        await_reached(folder, "left 1", "left 2")
    comm.finalize()
    reach(folder, f"left {comm.get_rank()}")


def test_finalize_never_fails_because_others_left(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(3, left_early, tmp_path)


def in_threads(count: int) -> list[float]:
    """One communicator for each thread, all busy at once; and one that all threads share for transfers."""
    comms = [made(f"t{index}") for index in range(count)]
    shared = made("shared")
    peer = 1 - shared.get_rank()
    results = [0.0] * count
    problems: list[BaseException] = []

    def body(index: int) -> None:
        try:
            comm = comms[index]
            for step in range(50):
                tensor = torch.full((index * 100 + 1,), float(step))
                comm.all_reduce(tensor, ReduceOp.SUM, step % 2 == 0).wait()
                results[index] += float(tensor[-1])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=body, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        batch = shared.batch_op_create()
        got = torch.empty(10)
        batch.send(torch.full((10,), float(peer)), peer)
        batch.recv(got, peer)
        batch.issue(False)
        assert got.tolist() == [float(shared.get_rank())] * 10
    for thread in threads:
        thread.join(30)
    assert not problems, problems
    for comm in (*comms, shared):
        comm.finalize()
    return results


def test_threads_use_communicators_of_their_own_at_once(ranks: Ranks) -> None:
    assert ranks.run(2, in_threads, 4) == [[2450.0] * 4] * 2


def odd_tensors() -> list[str]:
    comm = made()
    rank, size = comm.get_rank(), comm.get_size()
    refused = []

    def refuses(what: str, *arguments: object) -> None:
        try:
            getattr(comm, what)(*arguments, False)
        except RuntimeError as error:
            refused.append(str(error))
        else:
            raise AssertionError(f"{what}{arguments} was not refused")

    one = torch.ones(4)
    refuses("broadcast", torch.ones(4, 4).t(), 0)
    refuses("all_reduce", torch.ones(4, device="meta"), ReduceOp.SUM)
    refuses("all_reduce", torch.ones(4).to_sparse(), ReduceOp.MAX)
    refuses("broadcast", torch.ones(4).to_sparse(), 0)
    refuses("all_reduce", torch.ones(4, 4).to_sparse_csr(), ReduceOp.SUM)
    refuses("all_reduce", torch.ones(4, dtype=torch.complex64).conj(), ReduceOp.SUM)
    refuses("all_reduce", one, "sum")
    refuses("all_reduce", None, ReduceOp.SUM)
    refuses("broadcast", one, size)
    refuses("broadcast", one, -1)
    refuses("send", one, rank)
    refuses("recv", one, 99)
    refuses("all_gather", [one] * (size + 1), one)
    refuses("all_gather", [torch.ones(3)] * size, one)
    refuses("all_gather", [torch.ones(4, dtype=torch.float64)] * size, one)
    refuses("all_to_all_v_single", one, one, [1] * (size - 1), [1] * size)
    refuses("all_to_all_v_single", one, one, [9] * size, [9] * size)
    refuses("all_reduce", one.to(torch.float8_e5m2), ReduceOp.SUM)
    refuses("all_reduce", one, ReduceOp.BAND)
    refuses("all_reduce", one.to(torch.complex64), ReduceOp.MAX)
    # The communicator still works.
    comm.all_reduce(one, ReduceOp.SUM, False)
    assert one.tolist() == [float(size)] * 4
    comm.finalize()
    return refused


def test_rejected_calls_name_the_reason_and_do_not_disturb_the_group(ranks: Ranks) -> None:
    for refused in ranks.run(2, odd_tensors):
        assert "not contiguous" in refused[0]
        assert any("root 2 is out of range: ranks are 0 to 1" in text for text in refused)
        assert any("root -1 is out of range" in text for text in refused)
        assert any("itself" in text for text in refused) and any("src 99" in text for text in refused)
        assert all(text for text in refused)
        assert sum("torch.sparse_coo" in text or "torch.sparse_csr" in text for text in refused) == 2
        assert any("sparse tensors: must be SUM" in text for text in refused)


def sparse_sums(size_of_values: list[int]) -> tuple[list[str], Any]:
    comm = made()
    rank, size = comm.get_rank(), comm.get_size()
    log = io.StringIO()
    torchcomms.hooks.clog(log, [], ["buffers"]).register_with_comm(comm)
    torchcomms.hooks.NanCheckHook().register_with_comm(comm)
    # Rank 0 has nothing, rank 1 an index twice.
    rows = [[], [2, 2], [0, 3, 4]][rank]
    values = torch.ones(len(rows), *size_of_values) * (rank + 1)
    tensor = torch.sparse_coo_tensor([rows], values, (5, *size_of_values), check_invariants=False)
    dense = tensor.to_dense()
    comm.all_reduce(dense, ReduceOp.SUM, False)
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    assert tensor.to_dense().equal(dense), (tensor, dense)
    work = comm.all_reduce(tensor, ReduceOp.SUM, True, None, 30.0)
    work.wait()
    assert work.is_completed() and tensor.to_dense().equal(dense * size)
    again = torch.sparse_coo_tensor([rows], values, (5, *size_of_values), check_invariants=False)
    comm.reduce(again, 1, ReduceOp.SUM, False)
    own = torch.sparse_coo_tensor([rows], values, (5, *size_of_values), check_invariants=False)
    assert again.to_dense().equal(dense if rank == 1 else own.to_dense())
    bad = torch.sparse_coo_tensor([[1]], [float("nan")], (5,), check_invariants=False)
    with pytest.raises(RuntimeError, match="NaN"):
        comm.all_reduce(bad, ReduceOp.SUM, False)
    comm.finalize()
    return [line.split("|")[2] for line in log.getvalue().splitlines() if "|sig|" in line], dense.tolist()


@pytest.mark.parametrize("size_of_values", [[], [2]])
def test_sparse_tensors_are_summed(ranks: Ranks, size_of_values: list[int]) -> None:
    for seen, total in ranks.run(3, sparse_sums, size_of_values):
        # Hooks see the operation that was called.
        assert set(seen) == {"all_reduce", "reduce"}
        assert total == [3.0, 0.0, 4.0, 3.0, 3.0] or total == [[x, x] for x in (3.0, 0.0, 4.0, 3.0, 3.0)]


def splits() -> list[object]:
    comm = made("parent")
    rank = comm.get_rank()
    seen: list[object] = []
    for bad in ([0, 0], [0, 9], [-1, 0], [other for other in range(4) if other != rank]):
        with pytest.raises(RuntimeError):
            comm.split(bad)
    assert comm.split([]) is None
    halves = [[1, 0], [2, 3]]
    mine = halves[rank // 2]
    # Without a name, twice, both halves at once.
    for _ in range(2):
        child = comm.split(mine)
        assert child is not None
        tensor = torch.tensor([float(rank)])
        child.all_reduce(tensor, ReduceOp.SUM, False)
        seen.append((child.get_name(), child.get_rank(), child.get_size(), float(tensor.item())))
        child.finalize()
    child = comm.split(mine, "named", timeout=timedelta(seconds=10))
    assert child is not None and child.get_options() is not None
    grandchild = child.split([child.get_rank()], "alone")
    assert grandchild is not None and grandchild.get_size() == 1
    grandchild.barrier(False)
    swapped = child.split([1, 0])
    assert swapped is not None and swapped.get_rank() == 1 - child.get_rank()
    swapped.barrier(False)
    # The children outlive their parents.
    comm.finalize()
    child.barrier(False)
    child.finalize()
    swapped.barrier(False)
    swapped.finalize()
    grandchild.finalize()
    return seen


def test_communicators_split_and_their_children_too(ranks: Ranks) -> None:
    seen = ranks.run(4, splits)
    assert seen[0] == [("parent_0", 1, 2, 1.0)] * 2
    assert seen[1] == [("parent_0", 0, 2, 1.0)] * 2
    assert seen[2] == [("parent_2", 0, 2, 5.0)] * 2
    assert seen[3] == [("parent_2", 1, 2, 5.0)] * 2


def persistent() -> None:
    comm = made()
    output = torch.zeros(comm.get_size() * 2)
    handle = comm.all_gather_p_init(output)
    for step in range(3):
        own = torch.full((2,), float(comm.get_rank() + step))
        work = comm.all_gather_p_exec(handle, own, step == 1)
        work.wait()
        assert output.tolist() == [float(r + step) for r in range(comm.get_size()) for _ in range(2)]
    comm.all_gather_p_free(handle)
    with pytest.raises(RuntimeError, match="freed"):
        comm.all_gather_p_exec(handle, torch.zeros(2), False)
    with pytest.raises(RuntimeError, match="no operations"):
        comm.batch_op_create().issue(False)
    comm.finalize()


def test_a_persistent_all_gather_is_prepared_once(ranks: Ranks) -> None:
    ranks.run(2, persistent)


def forked() -> str:
    """A forked child can neither use nor end its parent's communicator."""
    comm = made()
    pid = os.fork()
    if pid == 0:
        try:
            comm.barrier(False)
        except RuntimeError:
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    comm.barrier(False)
    comm.finalize()
    return f"{os.waitstatus_to_exitcode(status)}"


def test_a_forked_child_leaves_its_parents_communicator_alone(ranks: Ranks) -> None:
    assert ranks.run(2, forked) == ["7", "7"]
