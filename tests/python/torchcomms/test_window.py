"""Windows: one-sided puts, signals, and tensors that other ranks see."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ranks import Ranks, await_reached, reach

torch = pytest.importorskip("torch", reason="torch is not installed")

import torchcomms  # noqa: E402
from torchcomms import TorchCommWinAccessType, TorchCommWindow  # noqa: E402

UNIFIED = TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED
SEPARATE = TorchCommWinAccessType.WIN_ACCESS_TYPE_SEPARATE
# Ranks share memory, or use TCP.
TRANSPORTS = [pytest.param({}, id="memory"), pytest.param({"RINGFOLD_SHARED_MEMORY": "0"}, id="tcp")]
WORLDS = [1, 2, 3]
# The longest time until a rank reports another's end. The aim is a tenth of a second.
SOON = 5.0


def comm(backend: str = "ringfold", **options: Any) -> torchcomms.TorchComm:
    return torchcomms.new_comm(backend, torch.device("cpu"), name="windows", timeout=60.0, **options)


def refused(call: Callable[[], object]) -> str:
    """The words of the RuntimeError that a call raises."""
    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


def is_shared() -> bool:
    return os.environ.get("RINGFOLD_SHARED_MEMORY") != "0"


# --- puts and signals ----------------------------------------------------------------------------------------------


def put_to_all(is_async: bool) -> list[float]:
    c = comm()
    me, size = c.get_rank(), c.get_size()
    tensor = torch.zeros(size, 1000)
    window = c.new_window(tensor)
    works = []
    for rank in range(size):
        works.append(window.put(torch.full((1000,), me + 1.0), rank, me * 1000, is_async))
        works.append(window.signal(rank, is_async))
        works.append(window.wait_signal(rank, is_async))
    for work in works:
        work.wait()
        assert work.is_completed() and work.status is torchcomms.WorkStatus.COMPLETED
    c.barrier(False)
    values: list[float] = tensor[:, -1].tolist()
    assert (tensor == torch.arange(1.0, size + 1)[:, None]).all()
    window.tensor_deregister()
    c.finalize()
    return values


@pytest.mark.parametrize("env", TRANSPORTS)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("is_async", [False, True])
def test_what_was_put_is_there_when_the_signal_has_come(
    ranks: Ranks, world: int, is_async: bool, env: dict[str, str]
) -> None:
    assert ranks.run(world, put_to_all, is_async, env=env) == [[r + 1.0 for r in range(world)]] * world


def ping_pong(count: int) -> None:
    c = comm()
    me, peer = c.get_rank(), 1 - c.get_rank()
    window = c.new_window(torch.zeros(300_000))
    tensor = window.get_tensor()
    assert tensor is not None
    for round in range(count):
        if round % 2 == me:
            window.put(torch.full((300_000,), float(round)), peer, 0, False)
            window.signal(peer, False)
        else:
            window.wait_signal(peer, False)
            assert (tensor == round).all()
    window.tensor_deregister()


@pytest.mark.parametrize("env", TRANSPORTS)
def test_a_signal_comes_behind_the_whole_put(ranks: Ranks, env: dict[str, str]) -> None:
    ranks.run(2, ping_pong, 60, env=env)


DTYPES = ["uint8", "int64", "float16", "bfloat16", "float64", "complex64", "bool", "float8_e4m3fn"]


def all_dtypes() -> None:
    c = comm()
    peer = (c.get_rank() + 1) % c.get_size()
    for name in DTYPES:
        source = torch.tensor([0, 1, 1, 0, 1]).to(getattr(torch, name))
        window = c.new_window(torch.zeros(7).to(source.dtype))
        window.put(source, peer, 2, False)
        window.signal(peer, False)
        window.wait_signal((c.get_rank() - 1) % c.get_size(), False)
        tensor = window.get_tensor()
        assert tensor is not None
        assert tensor.to(torch.complex64).real.tolist() == [0, 0, 0, 1, 1, 0, 1]
        if is_shared():
            seen = window.map_remote_tensor(peer)
            assert (seen.dtype, seen.shape) == (source.dtype, (7,))
        window.tensor_deregister()


@pytest.mark.parametrize("env", TRANSPORTS)
def test_every_type_of_elements_can_be_put(ranks: Ranks, env: dict[str, str]) -> None:
    ranks.run(2, all_dtypes, env=env)


def two_windows() -> None:
    c = comm()
    peer = 1 - c.get_rank()
    one, other = c.new_window(torch.zeros(4)), c.new_window(torch.zeros(4))
    for _ in range(3):
        one.signal(peer, False)
    other.signal(peer, False)
    for _ in range(3):
        one.wait_signal(peer, False)
    begun = time.monotonic()
    late = refused(lambda: one.wait_signal(peer, False, timeout=0.1))
    assert f"rank {peer}" in late and 0.1 <= time.monotonic() - begun < SOON
    work = one.wait_signal(peer, True, timeout=0.05)
    assert not work.is_completed()
    assert f"rank {peer}" in refused(work.wait) and work.status is torchcomms.WorkStatus.TIMEDOUT
    other.wait_signal(peer, False)
    c.barrier(False)
    # Nothing is broken, and what was late is not lost.
    one.signal(peer, False)
    one.wait_signal(peer, False)


@pytest.mark.parametrize("env", TRANSPORTS)
def test_each_wait_takes_one_signal_of_one_window_and_may_be_late(ranks: Ranks, env: dict[str, str]) -> None:
    ranks.run(2, two_windows, env=env)


# --- tensors -------------------------------------------------------------------------------------------------------


def live_views() -> None:
    c = comm()
    me, size = c.get_rank(), c.get_size()
    whole = torch.arange(24.0).reshape(6, 4) + 100 * me
    part, same = whole[1:3], whole[2]
    window = c.new_window(part)
    assert window.get_tensor() is part and window.map_remote_tensor(me) is part
    # In place: all tensors on that storage still are on one storage.
    assert whole.is_shared() == is_shared()
    part[1, 0] = -1
    assert same[0] == -1
    same[0] = 8 + 100 * me
    c.barrier(False)
    for rank in range(size):
        expected = UNIFIED if rank == me or is_shared() else SEPARATE
        assert window.get_attr(rank).access_type is expected
        if expected is SEPARATE:
            assert "not shared" in refused(partial(window.map_remote_tensor, rank))
            continue
        theirs = window.map_remote_tensor(rank)
        assert theirs.tolist() == (torch.arange(4.0, 12.0).reshape(2, 4) + 100 * rank).tolist()
    c.barrier(False)
    if is_shared():
        window.map_remote_tensor((me + 1) % size)[0, 1] = 77 + me
        c.barrier(False)
        assert whole[1, 1] == 77 + (me - 1) % size
    window.tensor_deregister()


@pytest.mark.parametrize("env", TRANSPORTS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_mapped_tensor_is_the_other_ranks_tensor_itself(
    ranks: Ranks, world: int, env: dict[str, str]
) -> None:
    ranks.run(world, live_views, env=env)


def outlives() -> None:
    c = comm()
    peer = 1 - c.get_rank()
    window = c.new_window(torch.full((5,), float(c.get_rank())))
    theirs = window.map_remote_tensor(peer)
    c.barrier(False)
    window.tensor_deregister()
    del window
    c.barrier(False)
    assert theirs.tolist() == [peer] * 5


def test_a_mapped_tensor_outlives_its_window(ranks: Ranks) -> None:
    ranks.run(2, outlives)


def sizes() -> None:
    c = comm()
    me, size = c.get_rank(), c.get_size()
    window = c.new_window()
    assert (window.get_tensor(), window.get_size(), window.shape) == (None, 0, [])
    assert isinstance(window, TorchCommWindow)
    window.tensor_register(torch.zeros(me, 3))
    assert (window.get_size(), window.shape) == (12 * me, [me, 3])
    assert (window.dtype, window.device) == (torch.float32, torch.device("cpu"))
    for rank in range(size):
        window.put(torch.full((3 * rank,), 5.0), rank, 0, False)
        assert "past the end" in refused(partial(window.put, torch.zeros(1), rank, 3 * rank, False))
        window.signal(rank, False)
        if is_shared():
            assert window.map_remote_tensor(rank).shape == (rank, 3)
    for rank in range(size):
        window.wait_signal(rank, False)
    tensor = window.get_tensor()
    assert tensor is not None and (tensor == 5).all()
    window.tensor_deregister()
    assert (window.get_tensor(), window.get_size(), window.shape) == (None, 0, [])
    # It may be used again.
    window.tensor_register(torch.zeros(2), owning=True)
    window.tensor_deregister()


@pytest.mark.parametrize("env", TRANSPORTS)
@pytest.mark.parametrize("world", WORLDS)
def test_ranks_may_register_different_sizes_and_nothing(
    ranks: Ranks, world: int, env: dict[str, str]
) -> None:
    ranks.run(world, sizes, env=env)


def argument_errors() -> None:
    c = comm()
    size = c.get_size()
    window = c.new_window()
    unregistered: list[Callable[[], object]] = [
        lambda: window.put(torch.zeros(1), 0, 0, False),
        lambda: window.signal(0, False),
        lambda: window.wait_signal(0, False),
        lambda: window.map_remote_tensor(0),
        lambda: window.get_attr(0),
        window.get_device_window,
        window.tensor_deregister,
    ]
    for call in unregistered:
        assert "no registered tensor" in refused(call)
    assert "contiguous" in refused(lambda: window.tensor_register(torch.zeros(4, 4).t()))
    window.tensor_register(torch.zeros(10))
    assert "already" in refused(lambda: window.tensor_register(torch.zeros(10)))
    assert "contiguous" in refused(lambda: window.put(torch.zeros(4, 4).t(), 0, 0, False))
    assert "float64" in refused(lambda: window.put(torch.zeros(4).double(), 0, 0, False))
    for offset, count in [(10, 1), (0, 11), (-1, 1), (2**62, 1)]:
        text = refused(partial(window.put, torch.zeros(count), size - 1, offset, False))
        assert "past the end" in text and f"rank {size - 1}" in text
    assert "host memory" in refused(window.get_device_window)
    for rank in [-1, size]:
        calls: list[Callable[[], object]] = [
            partial(window.put, torch.zeros(1), rank, 0, False),
            partial(window.signal, rank, False),
            partial(window.wait_signal, rank, False),
            partial(window.map_remote_tensor, rank),
            partial(window.get_attr, rank),
        ]
        for call in calls:
            text = refused(call)
            assert f"rank {rank} " in text and f"0 to {size - 1}" in text
    window.tensor_deregister()
    assert "no registered tensor" in refused(window.tensor_deregister)


@pytest.mark.parametrize("world", [1, 2])
def test_unsupported_operations_are_rejected_with_the_reason(ranks: Ranks, world: int) -> None:
    ranks.run(world, argument_errors)


def overlapping_puts_to_oneself() -> list[float]:
    c = comm()
    tensor = torch.arange(6.0)
    window = c.new_window(tensor)
    window.put(tensor[:4], 0, 2, False)
    values: list[float] = tensor.tolist()
    return values


def test_a_put_into_the_own_tensor_may_overlap(ranks: Ranks) -> None:
    assert ranks.run(1, overlapping_puts_to_oneself) == [[0, 1, 0, 1, 2, 3]]


def copies() -> None:
    c = comm()
    peer = 1 - c.get_rank()
    window = c.new_window(torch.full((3,), float(c.get_rank())))
    assert copy.copy(window) is window
    memo: dict[int, Any] = {}
    clone = copy.deepcopy(window, memo)
    assert memo[id(window)] is clone and clone is not window
    window.put(torch.tensor([9.0]), peer, 0, False)
    clone.put(torch.tensor([8.0]), peer, 1, False)
    for w in (window, clone):
        w.signal(peer, False)
        w.wait_signal(peer, False)
    mine = float(c.get_rank())
    first, second = window.get_tensor(), clone.get_tensor()
    assert first is not None and second is not None
    assert first.tolist() == [9, mine, mine] and second.tolist() == [mine, 8, mine]
    empty = copy.deepcopy(c.new_window())
    assert empty.get_tensor() is None


def test_a_deep_copy_is_a_window_with_a_clone_of_the_tensor(ranks: Ranks) -> None:
    ranks.run(2, copies)


def references() -> None:
    c = comm()
    peer = 1 - c.get_rank()
    kept, loose = c.new_window(), c.new_window()
    kept.tensor_register(torch.zeros(3))
    loose.tensor_register(torch.zeros(3), owning=False)
    assert kept.get_tensor() is not None and loose.get_tensor() is None
    # Its memory is there for as long as someone may write it.
    loose.put(torch.ones(3), peer, 0, False)
    loose.signal(peer, False)
    loose.wait_signal(peer, False)
    loose.tensor_deregister()
    kept.tensor_deregister()
    # The source may go before the put has ended.
    big = c.new_window(torch.zeros(1_000_000))
    work = big.put(torch.ones(1_000_000), peer, 0, True)
    big.signal(peer, False)
    big.wait_signal(peer, False)
    tensor = big.get_tensor()
    assert tensor is not None and (tensor == 1).all()
    work.wait()
    big.tensor_deregister()


@pytest.mark.parametrize("env", TRANSPORTS)
def test_memory_lives_as_long_as_it_is_written(ranks: Ranks, env: dict[str, str]) -> None:
    ranks.run(2, references, env=env)


def no_space() -> None:
    from torchcomms import _shared_storage

    c = comm()
    me, peer = c.get_rank(), 1 - c.get_rank()
    if me == 1:
        _shared_storage.RESERVE_BYTES = 1 << 60
    tensor = torch.zeros(1000)
    window = c.new_window(tensor)
    assert window.get_attr(0).access_type is UNIFIED
    assert window.get_attr(1).access_type is (SEPARATE if me == 0 else UNIFIED)
    window.put(torch.ones(1000), peer, 0, False)
    window.signal(peer, False)
    window.wait_signal(peer, False)
    assert (tensor == 1).all()
    if me == 1:
        # Others write where it is, so it stays there even if there is space now.
        _shared_storage.RESERVE_BYTES, address = 0, tensor.data_ptr()
        again = c.new_window(tensor)
        assert tensor.data_ptr() == address
    else:
        again = c.new_window(tensor)
    again.tensor_deregister()
    window.tensor_deregister()


def test_a_tensor_that_does_not_fit_into_shared_memory_is_reached_over_tcp(ranks: Ranks) -> None:
    ranks.run(2, no_space)


def sealed() -> None:
    c = comm()
    me, peer = c.get_rank(), 1 - c.get_rank()
    tensor = torch.arange(1000.0)
    part = tensor[10:]
    window = c.new_window(tensor)
    assert window.get_attr(peer).access_type is UNIFIED
    number, size = tensor.untyped_storage()._share_fd_cpu_()
    with pytest.raises(PermissionError):
        os.ftruncate(number, 0)
    assert size == 4000 and (part == torch.arange(10.0, 1000.0)).all()
    # Others may have the file of a tensor that was shared before, so it stays as it is.
    shared = torch.zeros(1000).share_memory_() if me == 1 else torch.zeros(1000)
    other = c.new_window(shared)
    assert other.get_attr(1).access_type is (SEPARATE if me == 0 else UNIFIED)
    other.put(torch.ones(1000), peer, 0, False)
    other.signal(peer, False)
    other.wait_signal(peer, False)
    assert (shared == 1).all()
    other.tensor_deregister()
    window.tensor_deregister()


def test_only_memory_that_nobody_can_shrink_is_mapped(ranks: Ranks) -> None:
    ranks.run(2, sealed)


def many_windows() -> int:
    c = comm()
    peer = (c.get_rank() + 1) % c.get_size()
    before = 0
    for round in range(60):
        window = c.new_window(torch.zeros(1000))
        window.put(torch.ones(1000), peer, 0, False)
        window.tensor_deregister()
        if round == 10:
            before = len(os.listdir("/proc/self/fd"))
    return len(os.listdir("/proc/self/fd")) - before


@pytest.mark.parametrize("env", TRANSPORTS)
def test_windows_leave_no_open_files_behind(ranks: Ranks, env: dict[str, str]) -> None:
    assert all(more <= 2 for more in ranks.run(3, many_windows, env=env))


def on_split() -> None:
    c = comm()
    me = c.get_rank()
    child = c.split([0, 2] if me != 1 else [1], name="pair")
    assert child is not None
    size, rank = child.get_size(), child.get_rank()
    window = child.new_window(torch.zeros(2))
    window.put(torch.tensor([1.0 + me]), (rank + 1) % size, 0, False)
    window.signal((rank + 1) % size, False)
    window.wait_signal((rank - 1) % size, False)
    tensor = window.get_tensor()
    assert tensor is not None and tensor[0] == {0: 3, 2: 1, 1: 2}[me]
    window.tensor_deregister()


@pytest.mark.parametrize("env", TRANSPORTS)
def test_communicators_that_were_split_off_have_windows(ranks: Ranks, env: dict[str, str]) -> None:
    ranks.run(3, on_split, env=env)


# --- faults --------------------------------------------------------------------------------------------------------


def until_it_fails(what: str) -> tuple[float, str]:
    c = comm()
    window = c.new_window(torch.zeros(1_000_000))
    source = torch.ones(1_000_000)
    if what == "put" and c.get_rank() != 2:
        window.put(source, 2, 0, False)
    print("begun", flush=True)
    try:
        while True:
            if c.get_rank() == 2:
                signal.pause()
            elif what == "put":
                window.put(source, 2, 0, False)
            else:
                window.wait_signal(2, False)
    except RuntimeError as error:
        return time.time(), str(error)


@pytest.mark.parametrize("env", TRANSPORTS)
@pytest.mark.parametrize("what", ["put", "wait_signal"])
def test_a_killed_rank_is_named_at_once_by_all_windows(ranks: Ranks, what: str, env: dict[str, str]) -> None:
    running = ranks.start(3, until_it_fails, what, env=env)
    for rank in range(3):
        running.wait_for(rank, "begun")
        if what == "wait_signal":
            running.children[rank].wait_until_blocked()
    killed = time.time()
    running.kill(2)
    for outcome in running.outcomes()[:2]:
        assert outcome.error is None, outcome.error
        at, text = outcome.value
        assert "rank 2" in text and at - killed < SOON, (text, at - killed)


def calls_until_it_times_out(folder: Path, what: str) -> tuple[float, str]:
    c = comm()
    window = c.new_window(torch.zeros(1 << 20))
    c.barrier(False)
    if c.get_rank() == 1:
        (folder / "pid").write_text(str(os.getpid()))
        reach(folder, "ready")
        signal.pause()
    await_reached(folder, "stopped")
    source = torch.ones(1 << 20)

    def fill_the_queue() -> None:
        works: list[torchcomms.TorchWork] = []
        while not works or works[-1].status is not torchcomms.WorkStatus.TIMEDOUT:
            # The first ones fill the socket buffers.
            works.append(window.put(source if len(works) < 20 else source[:1], 1, 0, True))

    filler = threading.Thread(target=fill_the_queue)
    if what == "signal":
        filler.start()
    while True:
        began = time.monotonic()
        try:
            # Signals are sent until the queue is full.
            if what == "signal":
                window.signal(1, False, timeout=0.5)
            else:
                window.put(source, 1, 0, what == "async put", timeout=0.5).wait()
        except RuntimeError as error:
            took = time.monotonic() - began
            if what == "signal":
                filler.join(20.0)
            return took, str(error)


@pytest.mark.parametrize("what", ["signal", "put", "async put"])
def test_the_timeout_of_a_call_applies_to_a_rank_that_takes_nothing(
    ranks: Ranks, tmp_path: Path, what: str
) -> None:
    env = {"RINGFOLD_SHARED_MEMORY": "0"}
    running = ranks.start(2, calls_until_it_times_out, tmp_path, what, env=env)
    await_reached(tmp_path, "ready")
    running.signal(1, signal.SIGSTOP)
    status = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    while status.read_text().rpartition(") ")[2][0] != "T":
        time.sleep(0.01)
    reach(tmp_path, "stopped")
    running.children[0].wait(100.0)
    running.kill(1)
    took, text = running.outcomes()[0].value
    assert 0.4 < took < 10.0 and "timed out waiting for rank 1" in text


def interrupted() -> None:
    c = comm()
    window = c.new_window(torch.zeros(1))
    if c.get_rank() == 0:
        print("waits", flush=True)
        try:
            window.wait_signal(1, False)
        except KeyboardInterrupt:
            # Nothing is lost: the next wait has the signal.
            window.signal(1, False)
            window.wait_signal(1, False)
            return
        raise AssertionError("it was not interrupted")
    window.wait_signal(0, False)
    window.signal(0, False)


@pytest.mark.parametrize("env", TRANSPORTS)
def test_a_wait_that_is_interrupted_may_be_made_again(ranks: Ranks, env: dict[str, str]) -> None:
    running = ranks.start(2, interrupted, env=env)
    running.wait_for(0, "waits")
    running.children[0].wait_until_blocked()
    running.signal(0, signal.SIGINT)
    running.results()


def after_the_end() -> str:
    c = comm()
    peer = 1 - c.get_rank()
    window = c.new_window(torch.zeros(3))
    c.barrier(False)
    if c.get_rank() == 0:
        c.finalize()
        return refused(lambda: window.put(torch.zeros(1), peer, 0, False))
    return refused(lambda: window.wait_signal(peer, False))


@pytest.mark.parametrize("env", TRANSPORTS)
def test_a_window_ends_with_its_communicator(ranks: Ranks, env: dict[str, str]) -> None:
    here, there = ranks.run(2, after_the_end, env=env)
    assert "finalized" in here
    assert "rank 0" in there and "left" in there


# --- fake ----------------------------------------------------------------------------------------------------------


def test_windows_of_the_fake_backend_do_nothing() -> None:
    window = comm("fake").new_window()
    assert (window.get_tensor(), window.get_size(), window.shape) == (None, 0, [])
    tensor = torch.arange(6).reshape(2, 3)
    window.tensor_register(tensor)
    assert not tensor.is_shared()
    assert window.get_tensor() is tensor
    assert (window.get_size(), window.shape, window.dtype) == (48, [2, 3], torch.int64)
    assert window.get_attr(0).access_type is UNIFIED and window.map_remote_tensor(0) is tensor
    for work in [
        window.put(torch.zeros(99), 7, 1000, False),
        window.signal(5, True),
        window.wait_signal(5, False),
    ]:
        work.wait()
        assert work.is_completed()
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert "fake" in refused(window.get_device_window)
    clone = copy.deepcopy(window)
    assert isinstance(clone, TorchCommWindow) and copy.copy(window) is window
    cloned = clone.get_tensor()
    assert cloned is not None and cloned is not tensor and (cloned == tensor).all()
    window.tensor_deregister()
    assert window.get_tensor() is None


# --- names of arguments --------------------------------------------------------------------------------------------


def call_by_keyword() -> list[float]:
    c = comm()
    peer = 1 - c.get_rank()
    window = c.new_window(torch.zeros(8))
    ones = torch.ones(2)
    window.put(tensor=ones, dst_rank=peer, offset=0, async_op=False)
    window.put(tensor=ones, dst_rank=peer, target_offset_nelems=2, async_op=False)
    window.put(ones, peer, 4, False, options=torchcomms.PutOptions(timeout=20.0))
    for name in ("dst_rank", "peer_rank"):
        window.signal(**{name: peer}, async_op=False)
        window.wait_signal(peer_rank=peer, async_op=False)
    window.signal(peer, False, torchcomms.SignalOptions(timeout=20.0))
    window.wait_signal(peer, False, options=torchcomms.WaitSignalOptions(timeout=20.0))
    with pytest.raises(TypeError, match="same argument"):
        window.signal(dst_rank=peer, peer_rank=peer, async_op=False)
    with pytest.raises(RuntimeError, match="timed out"):
        window.wait_signal(peer, False, options=torchcomms.WaitSignalOptions(timeout=0.01))
    read = torch.zeros(1)
    window.get(read, src_rank=peer, offset=5, async_op=False)
    tensor = window.get_tensor()
    assert tensor is not None and read.item() == 1.0
    c.barrier(False)
    window.tensor_deregister()
    values: list[float] = tensor.tolist()
    c.finalize()
    return values


def test_arguments_have_the_names_of_the_documentation(ranks: Ranks) -> None:
    assert ranks.run(2, call_by_keyword) == [[1.0] * 6 + [0.0] * 2] * 2


@pytest.mark.parametrize("backend", ["ringfold", "fake"])
def test_local_buffers_are_kept_until_they_are_deregistered(ranks: Ranks, backend: str) -> None:
    ranks.run(1, keep_local_buffers, backend)


def keep_local_buffers(backend: str) -> None:
    c = comm(backend)
    window = c.new_window()
    source = torch.ones(3)
    assert "no registered tensor" in refused(lambda: window.register_local_buffer(source))
    window.tensor_register(torch.zeros(3))
    buffer = window.register_local_buffer(source)
    assert (buffer.address, buffer.size) == (source.data_ptr(), 12) and buffer.get_tensor() is source
    assert "not contiguous" in refused(lambda: window.register_local_buffer(torch.ones(2, 2).t()))
    assert "device" in refused(lambda: window.register_local_buffer(torch.ones(2, device="meta")))
    assert "kernels" in refused(window.get_device_window)
    assert "kernels" in refused(lambda: window.get_device_window(1, 0, -1))
    counted = refused(lambda: window.get_device_window(counter_count=1))
    assert ("fake" if backend == "fake" else "1 counters") in counted
    window.deregister_local_buffer(handle=buffer)
    assert "not registered" in refused(lambda: window.deregister_local_buffer(buffer))
    window.tensor_deregister()
    c.finalize()
