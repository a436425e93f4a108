"""The log of operations."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torchcomms  # noqa: E402
from ranks import Ranks  # noqa: E402
from torchcomms import RedOpType, ReduceOp, TorchComm  # noqa: E402
from torchcomms.hooks import clog  # noqa: E402

SUM = ReduceOp.SUM


@pytest.fixture
def comm() -> Iterator[TorchComm]:
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="logged")
    yield comm
    comm.finalize()


def _logged(comm: TorchComm, *events: str, verbose: tuple[str, ...] = ()) -> io.StringIO:
    output = io.StringIO()
    clog(output, list(events), list(verbose)).register_with_comm(comm)
    return output


def _signatures(text: str) -> list[str]:
    return [line.split("|sig|")[1] for line in text.splitlines() if "|sig|" in line]


def test_it_begins_with_a_base_and_the_communicator(comm: TorchComm) -> None:
    before = time.time()
    version, new_comm = _logged(comm).getvalue().splitlines()
    found = re.fullmatch(r"V\|1\|base_timestamp=(\d+\.\d{3})", version)
    assert found and abs(float(found[1]) - before) < 60
    assert new_comm == "new_comm|comm=logged|rank=0|world_size=1"


def test_a_signature_is_written_once_and_each_call_refers_to_it(comm: TorchComm) -> None:
    output = _logged(comm)
    for _ in range(2):
        comm.all_reduce(torch.ones(1024), SUM, False)
        comm.all_reduce(torch.ones(1024), SUM, True).wait()
    lines = output.getvalue().splitlines()[2:]
    assert lines[0] == (
        "C0|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=logged"
    )
    assert lines[2] == lines[0].replace("C0", "C1").replace("async_op=f", "async_op=t")
    calls = [re.fullmatch(r"C(\d)\|Q\|work_id=(\d+)\|\+\d+\.\d{3}", line) for line in (lines[1], *lines[3:])]
    assert all(calls)
    assert [call[1] for call in calls if call] == ["0", "1", "0", "1"]
    ids = [int(call[2]) for call in calls if call]
    assert ids == list(range(ids[0], ids[0] + 4))


@pytest.mark.parametrize("event", ["ALL", "LIFECYCLE"])
def test_with_lifecycle_start_end_and_wait_are_written_in_order(comm: TorchComm, event: str) -> None:
    output = _logged(comm, event)
    work = comm.barrier(True)
    letters = re.findall(r"C0\|([A-Z])\|work_id=\d+\|\+\d+\.\d{3}\n", output.getvalue())
    assert letters == ["Q", "S", "E"]
    work.wait()
    work.wait()
    assert output.getvalue().count("|W|") == 1
    comm.all_reduce(torch.ones(1), SUM, False)
    last = [line.split("|")[1] for line in output.getvalue().splitlines() if line.startswith("C1")]
    assert last[:4] == ["sig", "Q", "S", "E"]


def test_each_operation_has_its_fields_in_order(comm: TorchComm) -> None:
    output = _logged(comm)
    a, b, pair = (
        torch.ones(4, dtype=torch.int64),
        torch.ones(2, dtype=torch.int64),
        [torch.ones(3), torch.ones(5)],
    )
    f = torch.ones(6)
    comm.send(a, 2, True)
    comm.recv(a, 1, True)
    comm.broadcast(a, 0, False)
    comm.reduce(a, 0, ReduceOp.MAX, False)
    comm.all_gather(pair, f, False)
    comm.all_gather_v(pair, f, False)
    comm.all_gather_single(a, b, False)
    comm.reduce_scatter(f, pair, ReduceOp.AVG, False)
    comm.reduce_scatter_single(b, a, ReduceOp.MIN, False)
    comm.all_to_all_single(a, a, False)
    comm.all_to_all_v_single(a, b, [3, 1], [1, 1], False)
    comm.all_to_all(pair, pair, False)
    comm.barrier(False)
    comm.scatter(f, pair, 0, False)
    comm.gather(pair, f, 0, False)
    comm.gather_single(a, b, 0, False)
    batch = comm.batch_op_create()
    batch.send(a, 0)
    batch.recv(b, 0)
    batch.issue(False)
    assert [line.removesuffix("|comm=logged") for line in _signatures(output.getvalue())] == [
        "send|in_count=4|dtype=i64|peer=2|async_op=t",
        "recv|out_count=4|dtype=i64|peer=1|async_op=t",
        "broadcast|in_count=4|out_count=4|dtype=i64|root=0|async_op=f",
        "reduce|in_count=4|out_count=4|dtype=i64|red_op=max|root=0|async_op=f",
        "all_gather|in_count=6|out_counts=3,5|dtype=f32|async_op=f",
        "all_gather_v|in_count=6|out_counts=3,5|dtype=f32|async_op=f",
        "all_gather_single|in_count=2|out_count=4|dtype=i64|async_op=f",
        "reduce_scatter|in_counts=3,5|out_count=6|dtype=f32|red_op=avg|async_op=f",
        "reduce_scatter_single|in_count=4|out_count=2|dtype=i64|red_op=min|async_op=f",
        "all_to_all_single|in_count=4|out_count=4|dtype=i64|async_op=f",
        "all_to_all_v_single|in_count=2|out_count=4|in_splits=1,1|out_splits=3,1|dtype=i64|async_op=f",
        "all_to_all|in_counts=3,5|out_counts=3,5|dtype=f32|async_op=f",
        "barrier|async_op=f",
        "scatter|in_counts=3,5|out_count=6|dtype=f32|root=0|async_op=f",
        "gather|in_count=6|out_counts=3,5|dtype=f32|root=0|async_op=f",
        "gather_single|in_count=2|out_count=4|dtype=i64|root=0|async_op=f",
        "batch_op_issue|num_ops=2|async_op=f",
    ]


def test_types_and_reductions_have_short_names(comm: TorchComm) -> None:
    output = _logged(comm)
    dtypes = {
        torch.float32: "f32",
        torch.float64: "f64",
        torch.float16: "f16",
        torch.bfloat16: "bf16",
        torch.int32: "i32",
        torch.int64: "i64",
        torch.int16: "i16",
        torch.int8: "i8",
        torch.uint8: "u8",
        torch.bool: "bool",
        torch.float8_e4m3fn: "fp8e4m3",
        torch.float8_e5m2: "fp8e5m2",
        torch.complex64: "other",
    }
    for dtype in dtypes:
        comm.broadcast(torch.zeros(1, dtype=dtype), 0, False)
    assert re.findall(r"dtype=(\w+)", output.getvalue()) == list(dtypes.values())
    for kind in RedOpType:
        op = ReduceOp.PREMUL_SUM(2.0) if kind is RedOpType.PREMUL_SUM else ReduceOp(kind)
        comm.all_reduce(torch.zeros(1), op, False)
    assert re.findall(r"red_op=(\w+)", output.getvalue()) == (
        ["sum", "prod", "min", "max", "band", "bor", "bxor", "premul_sum", "avg"]
    )


def test_buffers_adds_addresses(comm: TorchComm) -> None:
    output = _logged(comm, verbose=("buffers",))
    a, b = torch.ones(2), torch.ones(2)
    comm.all_gather_single(b, a, False)
    assert output.getvalue().endswith(f"|in_buf=0x{a.data_ptr():x}|out_buf=0x{b.data_ptr():x}\n")


def test_a_split_and_what_the_child_does_are_logged(comm: TorchComm) -> None:
    output = io.StringIO()
    log = clog(output, [])
    log.register_with_comm(comm)
    child = comm.split([0], name="half")
    comm.split([])
    assert child is not None
    child.barrier(False)
    lines = output.getvalue().splitlines()[2:]
    assert lines[:3] == [
        f"split|parent=logged|child={child.get_name()}|ranks=0",
        f"new_comm|comm={child.get_name()}|rank=0|world_size=1",
        f"C0|sig|barrier|async_op=f|comm={child.get_name()}",
    ]
    # Registering it again is allowed, and no line is written twice.
    log.register_with_comm(child)
    child.barrier(False)
    assert len(output.getvalue().splitlines()) == len(lines) + 3
    child.finalize()


def test_a_communicator_can_be_registered_once(comm: TorchComm) -> None:
    log = clog(io.StringIO(), ["ALL"])
    log.register_with_comm(comm)
    with pytest.raises(RuntimeError, match="logged"):
        log.register_with_comm(comm)
    other = torchcomms.new_comm("fake", torch.device("cpu"), name="other")
    log.register_with_comm(other)
    other.finalize()


def test_events_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="LIFE"):
        clog(io.StringIO(), ["SOME"])
    with pytest.raises(ValueError, match="buffers"):
        clog(io.StringIO(), ["ALL"], ["bytes"])


def test_a_file_is_flushed_after_every_line(comm: TorchComm, tmp_path: Path) -> None:
    path = tmp_path / "log"
    clog(str(path), "ALL").register_with_comm(comm)
    comm.barrier(False)
    assert "|E|" in path.read_text()
    clog(path, "ALL").register_with_comm(comm)
    assert len(path.read_text().splitlines()) == 2


def test_threads_write_whole_lines_in_the_order_of_their_times(comm: TorchComm) -> None:
    output = _logged(comm, "ALL")

    def run(size: int) -> None:
        for _ in range(200):
            comm.all_reduce(torch.ones(size), SUM, True).wait()

    threads = [threading.Thread(target=run, args=(size,)) for size in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = output.getvalue().splitlines()
    times = [float(found[1]) for line in lines if (found := re.search(r"\|\+(\d+\.\d{3})$", line))]
    assert len(times) == 4 * 200 * 4 and times == sorted(times)
    assert len(_signatures(output.getvalue())) == 4


def test_ends_of_real_operations_are_written_when_they_are_seen(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(2, _two, str(tmp_path / "log"))
    for rank in range(2):
        lines = (tmp_path / f"log{rank}").read_text().splitlines()
        assert lines[1] == f"new_comm|comm=real|rank={rank}|world_size=2"
        kinds = [line.split("|")[1] for line in lines[2:]]
        assert kinds == ["sig", "Q", "S", "E", "W", "sig", "Q", "S", "E", "W", "sig", "Q", "S", "E", "W"]


def _two(path: str) -> None:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="real")
    clog(f"{path}{comm.get_rank()}", ["LIFECYCLE"]).register_with_comm(comm)
    comm.all_reduce(torch.ones(1), SUM, False)
    work = comm.all_reduce(torch.ones(1 << 16), SUM, True)
    work.wait()
    work.wait()
    comm.scatter(torch.ones(2), [torch.ones(2)] * 2 if comm.get_rank() == 1 else [], 1, False)
    comm.finalize()
