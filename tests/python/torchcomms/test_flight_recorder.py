"""The flight recorder: what it keeps and dumps, and that torch's analyser reads it."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torchcomms  # noqa: E402
from ranks import Ranks  # noqa: E402
from torchcomms import ReduceOp, TorchComm  # noqa: E402
from torchcomms.hooks import FlightRecorderHook  # noqa: E402
from versions import makes_groups_of_some_ranks, reads_lists, skip_unreadable_traces  # noqa: E402

SUM = ReduceOp.SUM


@pytest.fixture
def comm() -> Iterator[TorchComm]:
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="flown")
    yield comm
    comm.finalize()


@pytest.fixture
def recorder(comm: TorchComm) -> FlightRecorderHook:
    recorder = FlightRecorderHook(isolated=True)
    recorder.register_with_comm(comm)
    return recorder


def _dumped(recorder: FlightRecorderHook, include_completed: bool = True) -> dict[str, Any]:
    dump: dict[str, Any] = json.loads(recorder.dump_json(include_completed))
    return dump


def _entries(recorder: FlightRecorderHook, include_completed: bool = True) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = _dumped(recorder, include_completed)["entries"]
    return entries


def test_a_communicator_is_listed_from_its_registration_on(recorder: FlightRecorderHook) -> None:
    dump = _dumped(recorder)
    assert dump["version"] == "2.10"
    assert isinstance(dump["comm_lib_version"], str)
    assert dump["pg_config"] == {"flown": {"name": "flown", "desc": "fake", "ranks": "[0]"}}
    assert dump["pg_status"] == {
        "0": {
            "last_enqueued_collective": -1,
            "last_started_collective": -1,
            "last_completed_collective": -1,
        }
    }
    assert dump["entries"] == []


def test_an_entry_describes_its_operation(comm: TorchComm, recorder: FlightRecorderHook) -> None:
    before = time.time_ns()
    tensor = torch.ones(2, 3)
    comm.all_reduce(tensor, SUM, False)
    comm.all_gather([torch.ones(4, dtype=torch.int64)], torch.ones(4, dtype=torch.int64), True).wait()
    comm.all_reduce(tensor, SUM, False, timeout=1.5)
    first, second, third = _entries(recorder)
    for name in ("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "timeout_ms"):
        assert type(first[name]) is int, name
    assert [first["record_id"], second["record_id"]] == [0, 1]
    assert [first["collective_seq_id"], second["collective_seq_id"]] == [0, 1]
    assert second["op_id"] == first["op_id"] + 1
    assert first["process_group"] == ["flown", "fake"]
    assert first["profiling_name"] == "fake:all_reduce"
    assert first["input_sizes"] == first["output_sizes"] == [[2, 3]]
    assert first["input_dtypes"] == first["output_dtypes"] == ["Float"]
    assert second["output_dtypes"] == ["Long"]
    assert first["timeout_ms"] == 600_000 and third["timeout_ms"] == 1500
    assert first["thread_name"] == threading.current_thread().name
    assert first["is_p2p"] is False
    for entry in (first, second):
        assert entry["state"] == "completed" and entry["retired"] is True
        assert entry["duration_ms"] > 0
        times = [
            entry[f"time_{name}_ns"] for name in ("created", "discovered_started", "discovered_completed")
        ]
        assert sorted(order := [before, *times, time.time_ns()]) == order
    assert recorder.dump_json(False) and _entries(recorder, include_completed=False) == []
    status = _dumped(recorder)["pg_status"]["0"]
    assert set(status.values()) == {2}


def test_transfers_and_collectives_are_counted_apart(comm: TorchComm, recorder: FlightRecorderHook) -> None:
    one = torch.ones(1)
    comm.barrier(False)
    comm.send(one, 0, False)
    comm.recv(one, 0, False)
    batch = comm.batch_op_create()
    batch.send(one, 0)
    batch.recv(one, 0)
    batch.issue(False)
    comm.barrier(False)
    entries = _entries(recorder)
    assert [entry["profiling_name"] for entry in entries] == [
        "fake:barrier",
        "fake:send",
        "fake:recv",
        "fake:batch_op_issue",
        "fake:barrier",
    ]
    assert [entry["is_p2p"] for entry in entries] == [False, True, True, True, False]
    assert [entry["p2p_seq_id"] for entry in entries if entry["is_p2p"]] == [0, 1, 2]
    assert [entry["collective_seq_id"] for entry in entries if not entry["is_p2p"]] == [0, 1]
    send, recv = entries[1:3]
    assert (send["input_sizes"], send["output_sizes"]) == ([[1]], [])
    assert (recv["input_sizes"], recv["output_sizes"]) == ([], [[1]])


def test_rejected_calls_are_recorded_with_their_error_and_not_counted(ranks: Ranks) -> None:
    refused, done = ranks.run(1, _refused)[0]
    assert refused["state"] == "scheduled" and not refused["retired"]
    assert "contiguous" in refused["error"]
    assert refused["collective_seq_id"] == done["collective_seq_id"] == 0


def _refused() -> list[dict[str, Any]]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="refuses")
    recorder = FlightRecorderHook(isolated=True)
    recorder.register_with_comm(comm)
    with pytest.raises(RuntimeError):
        comm.all_reduce(torch.ones(4, 4).t(), SUM, False)
    comm.barrier(False)
    comm.finalize()
    return _entries(recorder)


def test_the_newest_take_the_place_of_the_oldest(comm: TorchComm) -> None:
    recorder = FlightRecorderHook(max_entries=4, isolated=True)
    recorder.register_with_comm(comm)
    for size in range(10):
        comm.broadcast(torch.ones(size), 0, False)
    assert recorder.size() == len(recorder) == 4
    assert [entry["input_sizes"] for entry in _entries(recorder)] == [[[6]], [[7]], [[8]], [[9]]]
    assert [entry["record_id"] for entry in _entries(recorder)] == [6, 7, 8, 9]
    assert not recorder._recorder._open
    recorder.reset()
    assert recorder.size() == 0 and _entries(recorder) == []
    comm.barrier(False)
    assert [entry["record_id"] for entry in _entries(recorder)] == [10]
    assert "flown" in _dumped(recorder)["pg_config"]


def test_one_with_room_for_nothing_works_and_costs_nothing(comm: TorchComm) -> None:
    for isolated in (False, True):
        recorder = FlightRecorderHook(max_entries=0, isolated=isolated)
        size = recorder.size()
        recorder.register_with_comm(comm)
        comm.barrier(False)
        assert not recorder.is_enabled()
        assert recorder.size() == size
        assert "flown" in _dumped(recorder)["pg_config"]
    assert not comm._pre.every and not comm._post.every


def test_recorders_share_one_memory_unless_isolated(comm: TorchComm) -> None:
    shared, again = FlightRecorderHook(), FlightRecorderHook(max_entries=7)
    alone = FlightRecorderHook(isolated=True)
    before = shared.size()
    assert not alone.is_enabled() and not shared.is_enabled()
    for recorder in (shared, shared, again, alone):
        recorder.register_with_comm(comm)
    comm.barrier(False)
    assert shared.size() == again.size() == before + 1
    assert alone.size() == 1
    assert [entry["record_id"] for entry in _entries(alone)] == [0]
    assert alone.is_enabled() and shared.is_enabled()


def test_a_recorder_that_is_dropped_goes_on(comm: TorchComm) -> None:
    FlightRecorderHook().register_with_comm(comm)
    gc.collect()
    reader = FlightRecorderHook()
    before = reader.size()
    comm.barrier(False)
    assert reader.size() == before + 1


def test_a_split_is_recorded_on_the_parent_and_the_child_registers_itself(
    comm: TorchComm, recorder: FlightRecorderHook
) -> None:
    child = comm.split([0], name="half")
    assert child is not None
    child.barrier(False)
    comm.barrier(False)
    comm.split([])
    child.finalize()
    entries = _entries(recorder)
    assert [(entry["process_group"][0], entry["profiling_name"]) for entry in entries] == [
        ("flown", "fake:split"),
        (child.get_name(), "fake:barrier"),
        ("flown", "fake:barrier"),
        ("flown", "fake:split"),
    ]
    assert all(entry["retired"] for entry in entries)
    assert [entry["pg_id"] for entry in entries] == [0, 1, 0, 0]
    assert set(_dumped(recorder)["pg_config"]) == {"flown", child.get_name()}
    # Registering it explicitly is allowed.
    recorder.register_with_comm(child)


def test_it_keeps_no_tensors(comm: TorchComm, recorder: FlightRecorderHook) -> None:
    gone = []
    for async_op in (False, True):
        tensor = torch.ones(1000)
        gone.append(weakref.ref(tensor))
        work = comm.all_reduce(tensor, SUM, async_op)
        batch = comm.batch_op_create()
        batch.send(tensor, 0)
        batch.issue(async_op)
        del tensor, batch, work
    assert [one() for one in gone] == [None, None]


def test_threads_may_record_and_dump_at_once(comm: TorchComm) -> None:
    recorder = FlightRecorderHook(max_entries=200, isolated=True)
    recorder.register_with_comm(comm)
    errors: list[BaseException] = []

    def guarded(times: int, call: Any) -> None:
        try:
            for _ in range(times):
                call()
        except BaseException as error:
            errors.append(error)

    tensor = torch.ones(1)
    threads = [
        *[
            threading.Thread(target=guarded, args=(500, lambda: comm.all_reduce(tensor, SUM, True)))
            for _ in range(3)
        ],
        *[threading.Thread(target=guarded, args=(20, recorder.dump_json)) for _ in range(2)],
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    ids = [entry["record_id"] for entry in _entries(recorder)]
    assert ids == list(range(1300, 1500))
    assert sorted(entry["collective_seq_id"] for entry in _entries(recorder)) == ids


def test_the_file_goes_where_the_environment_says(
    comm: TorchComm, recorder: FlightRecorderHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm.barrier(False)
    monkeypatch.delenv("TORCHCOMM_FR_DUMP_TEMP_FILE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert recorder.dump_file(3) == str(tmp_path / "cache" / "torch" / "comm_lib_trace_rank_3")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert recorder.dump_file(4) == str(tmp_path / "home" / ".cache" / "torch" / "comm_lib_trace_rank_4")
    monkeypatch.setenv("TORCHCOMM_FR_DUMP_TEMP_FILE", str(tmp_path / "mine_"))
    assert recorder.dump_file(5) == str(tmp_path / "mine_5")
    monkeypatch.setenv("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME", "1")
    assert recorder.dump_file(5) == str(tmp_path / "mine_")
    dump = pickle.loads((tmp_path / "mine_").read_bytes())
    assert dump["version"] == "2.10"
    assert [entry["profiling_name"] for entry in dump["entries"]] == ["fake:barrier"]
    monkeypatch.setenv("TORCHCOMM_FR_DUMP_TEMP_FILE", str(tmp_path / "active"))
    recorder.dump_file(0, include_completed=False)
    assert pickle.loads((tmp_path / "active").read_bytes())["entries"] == []


def test_the_size_of_the_shared_memory_comes_from_the_environment(ranks: Ranks) -> None:
    assert ranks.run(1, _records_five, env={"TORCHCOMM_FR_BUFFER_SIZE": "3"}) == [3]
    assert ranks.run(1, _records_five) == [5]


def _records_five() -> int:
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="flown")
    recorder = FlightRecorderHook()
    recorder.register_with_comm(comm)
    for _ in range(5):
        comm.barrier(False)
    comm.finalize()
    return recorder.size()


# --- with real ranks -----------------------------------------------------------------------------------------------


def test_any_thread_may_notice_the_end_of_an_asynchronous_operation(ranks: Ranks) -> None:
    assert ranks.run(2, _asynchronous) == [None] * 2


def _asynchronous() -> None:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="later")
    recorder = FlightRecorderHook(isolated=True)
    recorder.register_with_comm(comm)

    # Waited for by its user.
    comm.all_reduce(torch.ones(10), SUM, True).wait()
    assert [entry["state"] for entry in _entries(recorder)] == ["completed"]

    # Held by its user, who does not look; the dump does.
    held = comm.all_reduce(torch.ones(10), SUM, True)
    _until(lambda: _entries(recorder)[-1]["state"] == "completed")

    # Dropped: the recorder keeps neither work nor tensor; but collectives end in order.
    tensor = torch.ones(10)
    gone = weakref.ref(tensor)
    comm.all_reduce(tensor, SUM, True)
    del tensor
    comm.barrier(False)
    _until(lambda: gone() is None)
    assert [entry["state"] for entry in _entries(recorder)] == ["completed"] * 4

    # Not begun by the other rank yet.
    if comm.get_rank() == 0:
        waiting = comm.recv(torch.ones(1), 1, True)
        (entry,) = _entries(recorder, include_completed=False)
        assert (entry["profiling_name"], entry["state"], entry["retired"]) == (
            "ringfold:recv",
            "started",
            False,
        )
        assert entry["peer"] == 1 and "duration_ms" not in entry
        comm.barrier(False)
        waiting.wait()
    else:
        comm.barrier(False)
        comm.send(torch.ones(1), 0, False)
    assert _entries(recorder, include_completed=False) == []
    held.wait()
    comm.finalize()


def _until(holds: Any) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_when_a_communicator_fails_the_trace_is_written_before_the_error_is_raised(
    ranks: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = ranks.start(3, _stranded, env={"TORCHCOMM_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")})
    for rank in range(3):
        running.wait_for(rank, "ready")
    running.kill(2)
    outcomes = running.outcomes()
    for rank in (0, 1):
        assert outcomes[rank].value is not None, outcomes[rank]
        took, has_trace = outcomes[rank].value
        assert has_trace
        trace = pickle.loads((tmp_path / f"trace_{rank}").read_bytes())
        first, last = trace["entries"]
        assert (first["state"], last["state"]) == ("completed", "started")
        assert last["retired"] is False and "rank 2" in last["error"]
        assert trace["pg_status"]["0"]["last_completed_collective"] == 0
        assert trace["pg_status"]["0"]["last_enqueued_collective"] == 1
    found = _analyse(caplog, tmp_path, "--allow-incomplete-ranks")
    assert "missed FR dumps from ranks ({2})" in found


def _stranded() -> tuple[float, bool]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="stranded")
    FlightRecorderHook(isolated=True).register_with_comm(comm)
    comm.barrier(False)
    print("ready", flush=True)
    if comm.get_rank() == 2:
        signal.pause()
    begun = time.monotonic()
    path = Path(os.environ["TORCHCOMM_FR_DUMP_TEMP_FILE"] + str(comm.get_rank()))
    try:
        comm.all_reduce(torch.ones(4), SUM, False)
    except RuntimeError:
        return time.monotonic() - begun, path.exists()
    raise AssertionError("it did not fail")


@reads_lists
@pytest.mark.parametrize("world", [2, 3])
def test_torchs_analyser_finds_no_fault_in_a_run_without_one(
    ranks: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture, world: int
) -> None:
    ranks.run(world, _everything, env={"TORCHCOMM_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_rank_")})
    output = tmp_path.parent / f"{tmp_path.name}.db"
    found = _analyse(caplog, tmp_path, "-o", str(output))
    assert (
        "error" not in found.lower() and "Not all ranks" not in found and "mismatch" not in found.lower()
    ), found
    _, database = pickle.loads(output.read_bytes())
    assert all(collective.pass_check for collective in database.collectives)
    names = {collective.collective_name.split(":")[1].split(" ")[0] for collective in database.collectives}
    assert names >= {
        "all_reduce",
        "all_to_all_single",
        "all_gather_v",
        "gather",
        "scatter",
        "barrier",
        "split",
    }
    assert names & {"send", "recv"}
    # Each call has found its partners.
    assert all(call.collective_id is not None for call in database.ncclcalls)


def _everything() -> None:
    comm = torchcomms.new_comm("gloo", torch.device("cpu"), name="all")
    recorder = FlightRecorderHook()
    recorder.register_with_comm(comm)
    rank, size = comm.get_rank(), comm.get_size()
    _collectives(comm)
    _transfers(comm)
    # Some ranks alone, in another order than that of their numbers; then they have other numbers.
    part = [size - 1, 0]
    if rank in part:
        for _ in range(2):
            child = comm.split(part, name="part")
            assert child is not None
            child.all_reduce(torch.ones(3), SUM, False)
            tensor = torch.ones(5)
            if child.get_rank() == 0:
                child.send(tensor, 1, False)
            else:
                child.recv(tensor, 0, False)
            child.finalize()
    comm.all_reduce(torch.ones(2), SUM, False)
    recorder.dump_file(rank)
    comm.finalize()


def _collectives(comm: TorchComm) -> None:
    rank, size = comm.get_rank(), comm.get_size()
    uneven = [torch.ones(r + 1) for r in range(size)]
    even = [torch.ones(2) for _ in range(size)]
    flat, one = torch.ones(2 * size), torch.ones(2)
    comm.all_reduce(one, SUM, False)
    comm.broadcast(one, 0, False)
    comm.reduce(one, size - 1, SUM, False)
    comm.all_gather(even, one, False)
    comm.all_gather_v(uneven, torch.ones(rank + 1), False)
    comm.all_gather_single(flat, one, False)
    comm.reduce_scatter(one, even, SUM, False)
    comm.reduce_scatter_v(torch.ones(rank + 1), uneven, SUM, False)
    comm.reduce_scatter_single(one, flat, SUM, False)
    comm.all_to_all_single(flat, flat.clone(), False)
    # Rank r gives r + 1 rows to everyone, and its tensor has one more, which goes nowhere.
    given = torch.ones(size * (rank + 1) + 1, 3)
    taken = torch.ones(sum(range(size + 1)), 3)
    comm.all_to_all_v_single(taken, given, [r + 1 for r in range(size)], [rank + 1] * size, False)
    comm.all_to_all(uneven, [torch.ones(rank + 1) for _ in range(size)], False)
    comm.barrier(False)
    comm.scatter(one, even if rank == 0 else [], 0, False)
    comm.gather(even if rank == 0 else [], one, 0, False)
    comm.gather_single(flat, one, 0, False)
    handle = comm.all_gather_p_init(flat)
    comm.all_gather_p_exec(handle, one)
    comm.all_gather_p_free(handle)
    # A call that is rejected on one rank can be repeated with valid arguments.
    if rank == 0:
        for call in (
            lambda: comm.all_reduce(torch.ones(4, 4).t(), SUM, False),
            lambda: comm.send(torch.ones(1), 99, False),
        ):
            with pytest.raises(RuntimeError):
                call()
    comm.all_reduce(torch.ones(7), SUM, True).wait()


def _transfers(comm: TorchComm) -> None:
    rank, size = comm.get_rank(), comm.get_size()
    if rank == 0:
        comm.send(torch.ones(3), 1, False)
        comm.recv(torch.ones(4), 1, False)
    elif rank == 1:
        comm.recv(torch.ones(3), 0, False)
        comm.send(torch.ones(4), 0, False)
    # Around the ring, as pipelines do it, receives first.
    batch = comm.batch_op_create()
    batch.recv(torch.ones(6), (rank - 1) % size)
    batch.send(torch.ones(6), (rank + 1) % size)
    batch.issue(True).wait()


def test_torchs_analyser_finds_missing_and_mismatched_ranks(
    ranks: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, fault in (("missing", _one_is_missing), ("sizes", _sizes_differ)):
        folder = tmp_path / name
        ranks.run(2, fault, env={"TORCHCOMM_FR_DUMP_TEMP_FILE": str(folder / "rank_")})
    missing = _analyse(caplog, tmp_path / "missing")
    assert "Not all ranks joining collective" in missing and "missing ranks: {1}" in missing
    assert "collective: gloo:all_reduce" in missing
    sizes = _analyse(caplog, tmp_path / "sizes")
    assert "Culprit rank 1" in sizes and "[[5]]" in sizes


def _one_is_missing() -> None:
    comm, recorder = _recorded()
    comm.barrier(False)
    if comm.get_rank() == 0:
        with pytest.raises(RuntimeError, match="rank 1"):
            comm.all_reduce(torch.ones(4), SUM, False, timeout=0.3)
    recorder.dump_file(comm.get_rank())


def _sizes_differ() -> None:
    comm, recorder = _recorded()
    comm.barrier(False)
    with pytest.raises(RuntimeError):
        comm.all_reduce(torch.ones(4 + comm.get_rank()), SUM, False, timeout=10)
    recorder.dump_file(comm.get_rank())


def _recorded() -> tuple[TorchComm, FlightRecorderHook]:
    comm = torchcomms.new_comm("gloo", torch.device("cpu"), name="faulty")
    recorder = FlightRecorderHook()
    recorder.register_with_comm(comm)
    return comm, recorder


def _analyse(caplog: pytest.LogCaptureFixture, folder: Path, *options: str) -> str:
    """What torch's analyser says of the traces of a folder."""
    from torch.distributed.flight_recorder import fr_trace

    caplog.clear()
    with caplog.at_level(logging.INFO, "Flight Recorder"):
        try:
            fr_trace.main([str(folder), *options])
        except AssertionError as error:
            skip_unreadable_traces(error)
            raise
    return "\n".join(record.getMessage() for record in caplog.records)


@makes_groups_of_some_ranks
def test_groups_that_torch_makes_are_recorded_with_their_global_ranks(
    ranks: Ranks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"TORCHCOMM_FR_DUMP_TEMP_FILE": str(tmp_path / "rank_"), "TORCH_FR_BUFFER_SIZE": "100"}
    listed = ranks.run(3, _by_torch, env=env)
    assert listed[0] == ["[0,1,2]"]
    assert listed[1] == listed[2] == ["[0,1,2]", "[1,2]"]
    output = tmp_path.parent / f"{tmp_path.name}.db"
    found = _analyse(caplog, tmp_path, "-o", str(output))
    assert "Not all ranks" not in found and "Culprit" not in found, found
    _, database = pickle.loads(output.read_bytes())
    assert sorted(len(collective.expected_ranks) for collective in database.collectives) == [2, 3]


def _by_torch() -> list[str]:
    import torch.distributed as dist
    import torch.distributed.config as config

    config.use_torchcomms = True
    dist.init_process_group("gloo")
    part = dist.new_group([1, 2])
    # Making groups may take collectives of its own.
    recorder = FlightRecorderHook()
    recorder.reset()
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() > 0:
        dist.all_reduce(torch.ones(4), group=part)
    recorder.dump_file(dist.get_rank())
    ranks = [group["ranks"] for group in _dumped(recorder)["pg_config"].values()]
    dist.destroy_process_group()
    return ranks
