"""Which backends there are, and those that are written in Python."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torchcomms
from torchcomms import OpName, ReduceOp, TorchCommBackend

CPU = torch.device("cpu")


class Recorder(TorchCommBackend):
    """Records its calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.works: list[Pending] = []

    def init(self, device: torch.device, name: str, options: torchcomms.CommOptions) -> None:
        self.asked.append(("init", (device, name, options)))
        self._name = name

    def finalize(self) -> None:
        self.asked.append(("finalize", ()))

    def get_rank(self) -> int:
        return 3

    def get_size(self) -> int:
        return 5

    def get_backend_name(self) -> str:
        return "recorder"

    def get_comm_name(self) -> str:
        return self._name

    def split(self, ranks: list[int], name: str, options: torchcomms.CommOptions) -> TorchCommBackend | None:
        self.asked.append(("split", (ranks, name)))
        child = Recorder()
        child._name = name
        return child

    def set_timeout(self, timeout: timedelta) -> None:
        self.asked.append(("set_timeout", (timeout,)))


class Pending:
    def __init__(self) -> None:
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1


def _recording(name: str) -> Any:
    def method(self: Recorder, *arguments: Any) -> Pending | None:
        self.asked.append((name, arguments))
        if not arguments[-1]:
            return None
        self.works.append(Pending())
        return self.works[-1]

    return method


T = torch.ones(4)
L = [torch.ones(4) for _ in range(5)]
CALLS: dict[str, tuple[Any, ...]] = {
    "send": (T, 1),
    "recv": (T, 1),
    "broadcast": (T, 9),  # out of range: not checked here
    "all_reduce": (T, ReduceOp.SUM),
    "reduce": (T, 1, ReduceOp.MAX),
    "all_gather": (L, T),
    "all_gather_v": (L, T),
    "all_gather_single": (T, T),
    "reduce_scatter": (T, L, ReduceOp.SUM),
    "reduce_scatter_v": (T, L, ReduceOp.SUM),
    "reduce_scatter_single": (T, T, ReduceOp.SUM),
    "all_to_all_single": (T, T),
    "all_to_all_v_single": (T, T, [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]),
    "all_to_all": (L, L),
    "barrier": (),
    "scatter": (T, L, 0),
    "gather": (L, T, 0),
    "gather_single": (T, T, 0),
}
for _name in CALLS:
    setattr(Recorder, _name, _recording(_name))


@pytest.fixture
def recorder() -> torchcomms.TorchComm:
    torchcomms.register_backend("recorder_backend", Recorder)
    return torchcomms.new_comm("recorder_backend", CPU, "r", hints={"ringfold::media": "tcp"}, timeout=7.0)


def impl_of(comm: torchcomms.TorchComm) -> Recorder:
    impl = comm.get_backend_impl()
    assert isinstance(impl, Recorder)
    return impl


def test_a_backend_in_python_is_made_without_arguments_and_initialised(
    recorder: torchcomms.TorchComm,
) -> None:
    impl = impl_of(recorder)
    name, (device, comm_name, options) = impl.asked[0]
    assert (name, device, comm_name) == ("init", CPU, "r")
    assert options.timeout == timedelta(seconds=7) and options.hints == {"ringfold::media": "tcp"}
    assert (recorder.get_rank(), recorder.get_size(), recorder.get_backend()) == (3, 5, "recorder")
    assert recorder.get_name() == "r"
    recorder.set_timeout(timedelta(seconds=3))
    assert impl.asked[-1] == ("set_timeout", (timedelta(seconds=3),))
    recorder.finalize()
    assert impl.asked[-1][0] == "finalize"


@pytest.mark.parametrize("name", CALLS)
def test_operations_reach_it_by_position_unchecked(recorder: torchcomms.TorchComm, name: str) -> None:
    impl = impl_of(recorder)
    work = getattr(recorder, name)(*CALLS[name], False, timeout=1.0, hints={"x": "y"})
    assert work.is_completed()
    asked, arguments = impl.asked[-1]
    assert asked == name and len(arguments) == len(CALLS[name]) + 1
    assert all(got is given for got, given in zip(arguments, CALLS[name])) and arguments[-1] is False
    recorder.finalize()


def test_what_it_returns_is_pending_until_it_is_waited_for(recorder: torchcomms.TorchComm) -> None:
    impl = impl_of(recorder)
    work = recorder.all_reduce(T, ReduceOp.SUM, True)
    assert not work.is_completed() and work.status is torchcomms.WorkStatus.INPROGRESS
    work.wait()
    work.wait()
    assert work.is_completed() and impl.works[-1].waits == 1
    batch = recorder.batch_op_create()
    batch.send(T, 1)
    batch.recv(T, 2)
    work = batch.issue(True)
    assert [name for name, _ in impl.asked[-2:]] == ["send", "recv"] and not work.is_completed()
    work.wait()
    assert work.is_completed()
    recorder.finalize()


def test_its_hooks_fire_and_its_splits_are_its_own(recorder: torchcomms.TorchComm) -> None:
    seen: list[OpName] = []
    recorder.register_pre_hook(lambda op, op_id, args: seen.append(op))
    recorder.barrier(False)
    child = recorder.split([1, 3], "half")
    assert child is not None and isinstance(child.get_backend_impl(), Recorder)
    assert child.get_backend_impl() is not recorder.get_backend_impl()
    assert recorder.split([]) is None
    assert seen == [OpName.barrier, OpName.split, OpName.split]
    child.finalize()
    recorder.finalize()


@pytest.mark.parametrize("backend", ["fake", "recorder_backend"])
def test_backends_that_cannot_reconfigure_say_so(recorder: torchcomms.TorchComm, backend: str) -> None:
    comm = torchcomms.new_comm(backend, CPU, "c")
    with pytest.raises(RuntimeError, match="getInitHandle not implemented"):
        comm.get_init_handle()
    with pytest.raises(RuntimeError, match="reconfigure not implemented"):
        comm.reconfigure(0, ["x"])
    assert not comm.is_abort_supported() and not comm.is_aborted()
    comm.finalize()
    recorder.finalize()


def test_a_backend_reports_unsupported_operations(recorder: torchcomms.TorchComm) -> None:
    class Bare(TorchCommBackend):
        def get_rank(self) -> int:
            return 0

        def get_size(self) -> int:
            return 1

    torchcomms.register_backend("bare", Bare)
    comm = torchcomms.new_comm("bare", CPU, "b")
    assert comm.get_backend() == "Bare"
    with pytest.raises(RuntimeError, match="all_reduce not implemented.*Bare"):
        comm.all_reduce(T, ReduceOp.SUM, False)
    comm.finalize()
    recorder.finalize()


def test_only_backends_can_be_registered() -> None:
    with pytest.raises(TypeError, match="TorchCommBackend"):
        torchcomms.register_backend("x", int)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="name"):
        torchcomms.register_backend("", Recorder)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="failed to find backend 'nixda'"):
        torchcomms.new_comm("nixda", CPU, "c")
    with pytest.raises(ModuleNotFoundError, match="failed to find backend 'nixda'"):
        torchcomms.get_mem_allocator("nixda")


def test_the_available_backends_are_reported() -> None:
    from torchcomms._comms import _is_backend_registered

    assert torchcomms.built_backends() == ["fake", "gloo", "nccl", "ncclx", "ringfold"]
    assert all(map(torchcomms.is_backend_built, torchcomms.built_backends()))
    assert not torchcomms.is_backend_built("rccl") and not torchcomms.is_backend_built("late")
    assert (
        _is_backend_registered("xccl") and _is_backend_registered("mccl") and _is_backend_registered("gloo")
    )
    assert not _is_backend_registered("rccl") and not _is_backend_registered("late")
    torchcomms.register_backend("late", backend_class=Recorder)
    assert torchcomms.is_backend_built(backend="gloo")
    assert _is_backend_registered("late") and not torchcomms.is_backend_built("late")


def test_the_fake_backend_does_nothing_alone() -> None:
    comm = torchcomms.new_comm("fake", CPU, name="f")
    assert (comm.get_rank(), comm.get_size(), comm.get_backend()) == (0, 1, "fake")
    before = T.clone()
    for name, arguments in CALLS.items():
        work = getattr(comm, name)(*arguments, True)
        work.wait()
        assert work.is_completed() and work.status is torchcomms.WorkStatus.COMPLETED
    assert torch.equal(T, before)
    child = comm.split([0], "child")
    assert child is not None and child.get_size() == 1
    child.finalize()
    comm.finalize()


def test_backends_of_other_packages_are_found_by_their_entry_points(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text(
        textwrap.dedent("""
            from torchcomms import TorchCommBackend, register_backend
            class Foreign(TorchCommBackend):
                def get_rank(self): return 0
                def get_size(self): return 1
            class Other(Foreign): pass
            register_backend("by_module", Other)
        """)
    )
    info = tmp_path / "foreign-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torchcomms.backends]\nby_class = foreign:Foreign\nby_module = foreign\nbroken = foreign:nothing\n"
    )
    code = """
        import sys; sys.path.insert(0, sys.argv[1])
        import torchcomms
        assert torchcomms.new_comm("by_class", "cpu", "a").get_backend() == "Foreign"
        assert torchcomms.new_comm("by_module", "cpu", "b").get_backend() == "Other"
        try:
            torchcomms.new_comm("broken", "cpu", "c")
        except AttributeError as error:
            print("said:", error)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0 and "said:" in run.stdout, run.stderr
