"""How communicators are created, and the rendezvous of their ranks."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torchcomms
from blocked import leave_pid, wait_until_other_blocked
from ports import free_port
from ranks import Ranks
from torchcomms import CommOptions, ReduceOp, TorchComm

CPU = torch.device("cpu")


def total(comm: TorchComm) -> float:
    """What all ranks' numbers make together, from 1 on."""
    tensor = torch.tensor([comm.get_rank() + 1.0])
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    return float(tensor.item())


def tcp_store() -> dist.Store:
    port = int(os.environ["MASTER_PORT"])
    return dist.TCPStore("127.0.0.1", port, None, os.environ["RANK"] == "0", timedelta(seconds=30), False)


# --- stores ------------------------------------------------------------------------------------------------------------


def by_file_store(path: str) -> float:
    store = dist.FileStore(path, 2)
    comm = torchcomms.new_comm("gloo", CPU, store=store)
    result = total(comm)
    comm.finalize()
    return result


def test_a_file_store_alone_is_enough(ranks: Ranks, tmp_path: Path) -> None:
    bare = {"MASTER_ADDR": None, "MASTER_PORT": None}
    assert ranks.run(2, by_file_store, str(tmp_path / "store"), env=bare) == [3.0, 3.0]
    # The file may have the contents of the first run.
    assert ranks.run(2, by_file_store, str(tmp_path / "store"), env=bare) == [3.0, 3.0]


def by_shared_store() -> list[float]:
    store = tcp_store()
    dist.init_process_group(
        "gloo", store=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
    results = []
    for name in ("a", "b", "a", "a", "default", None, None):
        comm = torchcomms.new_comm("ringfold", CPU, name, store=store)
        results.append(total(comm))
        comm.finalize()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    results.append(float(tensor.item()))
    dist.destroy_process_group()
    del store
    return results


def test_one_store_serves_several_communicators_and_torch(ranks: Ranks) -> None:
    assert ranks.run(3, by_shared_store) == [[6.0] * 7 + [3.0]] * 3


def keep_no_store(path: str) -> bool:
    store = dist.PrefixStore("p", dist.FileStore(path, 2))
    dead = weakref.ref(store)
    comm = torchcomms.new_comm("ringfold", CPU, "c", store=store)
    assert comm.get_options().store is None
    del store
    gc.collect()
    is_gone = dead() is None
    total(comm)
    comm.finalize()
    return is_gone


def test_no_reference_to_the_callers_store_is_kept(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(2, keep_no_store, str(tmp_path / "store")) == [True, True]


def without_store() -> tuple[list[float], bool]:
    results = []
    for name in (None, "x", "x", None, "y"):
        comm = torchcomms.new_comm("ringfold", CPU, name)
        results.append(total(comm))
        if name is None:
            comm.barrier(False)
        comm.finalize()
    with socket.socket() as probe:
        is_free = probe.connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"]))) != 0
    return results, is_free


def test_without_a_store_the_ranks_meet_at_the_master_and_leave_the_port(ranks: Ranks) -> None:
    assert ranks.run(3, without_store) == [([6.0] * 5, True)] * 3


def beside_torch() -> float:
    dist.init_process_group("gloo")  # by the environment: rank 0 serves a store at MASTER_PORT
    comm = torchcomms.new_comm("ringfold", CPU, "beside")
    result = total(comm)
    dist.barrier()
    comm.finalize()
    dist.destroy_process_group()
    return result


def test_where_torch_holds_the_port_its_store_is_used(ranks: Ranks) -> None:
    assert ranks.run(2, beside_torch) == [3.0, 3.0]


def at_once(count: int) -> list[float]:
    """Several communicators without stores, each made by a thread of its own."""
    results = [0.0] * count

    def make(index: int) -> None:
        comm = torchcomms.new_comm("ringfold", CPU, f"thread{index}")
        for _ in range(20):
            results[index] += total(comm)
        comm.finalize()

    threads = [threading.Thread(target=make, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return results


def test_many_threads_make_and_use_communicators_at_once(ranks: Ranks) -> None:
    assert ranks.run(2, at_once, 6) == [[60.0] * 6] * 2


def twenty() -> list[float]:
    comms = [torchcomms.new_comm("ringfold", CPU, f"c{index}") for index in range(20)]
    results = [total(comm) for comm in comms]
    works = [comm.barrier(True) for comm in comms]
    for work in reversed(works):
        work.wait()
    for comm in comms:
        comm.finalize()
    return results


def test_twenty_communicators_live_side_by_side(ranks: Ranks) -> None:
    assert ranks.run(2, twenty) == [[3.0] * 20] * 2


PROGRAM = """
import os, sys, torch, torchcomms
comm = torchcomms.new_comm("gloo", torch.device("cpu"), name="t")
other = torchcomms.new_comm("gloo", torch.device("cpu"))
for one in (comm, other):
    tensor = torch.ones(3)
    one.all_reduce(tensor, torchcomms.ReduceOp.SUM, False)
    assert tensor.tolist() == [2.0] * 3
    one.finalize()
# In one piece: another rank writes to the same pipe.
sys.stdout.write(f"fine {os.environ.get('TORCHELASTIC_USE_AGENT_STORE')}\\n")
"""


def test_torchruns_own_store_is_used(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    words += [f"--master-port={free_port()}", str(program)]
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=200)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("fine True") == 2


def late(folder: Path) -> float:
    leave_pid(folder, os.environ["RANK"])
    if os.environ["RANK"] == "0":
        for other in ("1", "2"):
            wait_until_other_blocked(folder, other)
    comm = torchcomms.new_comm("ringfold", CPU, "late")
    result = total(comm)
    comm.finalize()
    return result


def test_others_wait_for_a_rank_zero_that_comes_late(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(3, late, tmp_path) == [6.0] * 3


def alone(store: bool) -> str:
    began = time.monotonic()
    given = dist.HashStore() if store else None
    try:
        torchcomms.new_comm("ringfold", CPU, "lonely", timeout=0.5, store=given)
    except RuntimeError as error:
        return f"{time.monotonic() - began < 5} {error}"
    return "made"


@pytest.mark.parametrize("store", [False, True])
def test_a_missing_rank_is_named_in_time(ranks: Ranks, store: bool) -> None:
    for outcome in ranks.run(1, alone, store, env={"WORLD_SIZE": "3"}):
        assert outcome.startswith("True ") and "1" in outcome and "2" in outcome, outcome
    (outcome,) = ranks.run(1, alone, store, env={"WORLD_SIZE": "3", "RANK": "2"})
    assert outcome.startswith("True ") and "lonely" in outcome, outcome


# --- a world of one ------------------------------------------------------------------------------------------------------


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)


@pytest.mark.usefixtures("one")
def test_a_world_of_one_needs_no_rendezvous() -> None:
    comm = torchcomms.new_comm("gloo", CPU)
    assert total(comm) == 1.0
    comm.finalize()


@pytest.mark.usefixtures("one")
def test_a_missing_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="MASTER_ADDR is not set"):
        torchcomms.new_comm("gloo", CPU)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(RuntimeError, match="MASTER_PORT is '0'"):
        torchcomms.new_comm("gloo", CPU)
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(RuntimeError, match="MASTER_PORT is not set"):
        torchcomms.new_comm("gloo", CPU)


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("backend", ["ringfold", "gloo", "nccl", "ncclx", "xccl", "mccl"])
def test_the_engine_has_several_names(backend: str) -> None:
    from torchcomms._comms_gloo import TorchCommGloo

    comm = torchcomms.new_comm(backend, CPU, "n")
    assert comm.get_backend() == backend and comm.get_backend_version()
    assert isinstance(comm.get_backend_impl(), TorchCommGloo) == (backend == "gloo")
    assert comm.mem_allocator is None and comm.get_mem_allocator() is None
    with pytest.warns(DeprecationWarning, match="get_backend_impl"):
        assert comm.unsafe_get_backend() is comm.get_backend_impl()
    comm.finalize()


@pytest.mark.usefixtures("one")
def test_every_option_may_be_none_or_come_in_one_object() -> None:
    nothing: dict[str, Any] = dict.fromkeys(
        [
            *("name", "abort_process_on_timeout_or_error", "timeout", "is_high_priority_stream", "store"),
            *("enable_reconfigure", "hints", "options"),
        ]
    )
    first = torchcomms.new_comm("gloo", CPU, **nothing)
    second = torchcomms.new_comm("gloo", CPU)
    assert first.get_name() and first.get_name() != second.get_name()
    options = CommOptions(
        timeout=4.0, name="o", hints={"ringfold::media": "auto"}, is_high_priority_stream=True
    )
    third = torchcomms.new_comm("gloo", CPU, options=options, timeout=timedelta(seconds=9))
    assert third.get_name() == "o" and options.timeout == 4.0
    options = third.get_options()
    assert options.timeout == timedelta(seconds=9) and options.is_high_priority_stream
    assert options.hints == {"ringfold::media": "auto"} and options.name == "o"
    for comm in (first, second, third):
        comm.finalize()


@pytest.mark.usefixtures("one")
def test_unknown_hints_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="backend_option"):
        comm = torchcomms.new_comm("ncclx", CPU, "h", hints={"backend_option": "value"})
    with pytest.warns(UserWarning, match="another"):
        comm.set_hints({"another": "1"})
    comm.finalize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for hints in (
            {"torchcomm::ncclx::high_priority_stream": "true"},
            {"is_high_priority_stream": "1"},
            {"persistent_store": "true", "whatever_torch_says": "1"},
        ):
            comm = torchcomms.new_comm("ncclx", CPU, "h", hints=hints)
            assert comm.get_options().is_high_priority_stream == ("persistent_store" not in hints)
            comm.finalize()


@pytest.mark.usefixtures("one")
def test_a_timeout_is_a_timedelta_or_seconds() -> None:
    with pytest.raises(TypeError, match="timeout"):
        torchcomms.new_comm("gloo", CPU, timeout="soon")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="device"):
        torchcomms.new_comm("gloo", 3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("one")
def test_finalizing_twice_is_an_error_and_getters_work_afterwards() -> None:
    comm = torchcomms.new_comm("gloo", CPU, "end")
    comm.finalize()
    assert (comm.get_rank(), comm.get_size(), comm.get_name(), comm.get_backend()) == (0, 1, "end", "gloo")
    assert comm.get_device() == CPU and comm.get_init_handle()
    with pytest.raises(RuntimeError, match="finalized"):
        comm.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        comm.barrier(False)


@pytest.mark.usefixtures("one")
def test_dropping_without_finalize_warns() -> None:
    comm = torchcomms.new_comm("gloo", CPU, "dropped")
    with pytest.warns(ResourceWarning, match="dropped"):
        del comm
        gc.collect()


def test_the_process_ends_well_with_communicators_that_were_never_finalized() -> None:
    code = """
        import os, torch, torchcomms
        os.environ.update(RANK="0", WORLD_SIZE="1")
        kept = torchcomms.new_comm("gloo", torch.device("cpu"), "kept")
        kept.barrier(True)
        print("end")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0 and run.stdout == "end\n", run.stderr


def long_names() -> list[Any]:
    comm = torchcomms.new_comm("ringfold", CPU, "long" * 100, timeout=float("inf"))
    comm.set_timeout(17.0)
    child = comm.split([0, 1], name="")
    assert child is not None
    child.set_hints({"ringfold::media": "tcp"})
    heard = [
        total(child),
        child.get_options().name == child.get_name(),
        child._timeout,
        comm.get_options().hints,
    ]
    child.finalize()
    comm.finalize()
    return [*heard, comm.is_aborted()]


def test_names_may_be_long_and_children_have_settings_of_their_own(ranks: Ranks) -> None:
    assert ranks.run(2, long_names) == [[3.0, True, 17.0, None, False]] * 2
