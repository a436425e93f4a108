"""Communicators in compiled functions, and asynchronous results, with ``TORCHCOMMS_PATCH_FOR_COMPILE=1``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Spawn
from ranks import Ranks
from variants import is_long, short_of

torch = pytest.importorskip("torch", reason="torch is not installed")

import compiled_cases as cases  # noqa: E402
import torchcomms  # noqa: E402
from torchcomms import ReduceOp, functional  # noqa: E402

pytestmark = pytest.mark.skipif(
    not functional.is_torch_compile_supported(), reason=f"torch {torch.__version__} is too old"
)

ENABLED = {"TORCHCOMMS_PATCH_FOR_COMPILE": "1"}
# Ranks compile at the same time, on few cores.
DEADLINE = 240.0
HAS_COMPILER = shutil.which("g++") is not None or shutil.which("c++") is not None
needs_compiler = pytest.mark.skipif(
    not HAS_COMPILER, reason="inductor needs a C++ compiler: g++ is not installed"
)
# Each rank runs a C++ compiler for a minute.
INDUCTOR_DEADLINE = 600.0
inductor_marks = [needs_compiler, pytest.mark.timeout(INDUCTOR_DEADLINE + 60)]
inductor = pytest.param("inductor", marks=inductor_marks)


def deadline_of(backend: str) -> float:
    return INDUCTOR_DEADLINE if backend == "inductor" else DEADLINE


def comm(**options: Any) -> torchcomms.TorchComm:
    return torchcomms.new_comm("ringfold", torch.device("cpu"), name="compiled", timeout=120.0, **options)


def environment(folder: Path) -> dict[str, str]:
    """Enabled, and nothing compiled is left for later runs."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TMPDIR": str(folder)}
    # No processes that compile, each of which imports torch, and no tests of instruction sets, which take 20 s.
    fast = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    return {**ENABLED, **cache, **fast}


def compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    # Headers are compiled in advance for many kernels; here are few.
    options = {"cpp_cache_precompile_headers": False} if backend == "inductor" else None
    return torch.compile(function, fullgraph=True, backend=backend, options=options)


# --- versions ------------------------------------------------------------------------------------------------------


def test_the_version_of_torch_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    supported = functional.is_torch_compile_supported
    assert supported(_current_version="2.12.0") and supported(_current_version="2.12.0.dev20260101+cpu")
    assert not supported(_current_version="2.11.1") and not supported("2.13", "2.12.9")
    # This process was started without the switch.
    assert not functional.is_torch_compile_supported_and_enabled()
    monkeypatch.setenv("TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT", "1")
    assert supported(_current_version="2.0") and not functional.is_torch_compile_supported_and_enabled()


SWITCH = """
import torchcomms.functional, torch
functional = torchcomms.functional
assert not functional.is_torch_compile_supported_and_enabled(_current_version="2.11")
print(functional.is_torch_compile_supported_and_enabled(), hasattr(torch.ops.torchcomms, "torchcomm_wait_tensors_"))
"""


@pytest.mark.parametrize("value", ["1", *short_of([], ["0"])])
def test_the_switch_enables_it(spawn: Spawn, value: str) -> None:
    text = spawn(SWITCH, env={"TORCHCOMMS_PATCH_FOR_COMPILE": value}).succeed(DEADLINE)
    assert text.split() == [str(value == "1")] * 2


def works_without_the_switch() -> str:
    c = comm()
    work = c.all_reduce(torch.ones(1, requires_grad=True), ReduceOp.SUM, True)
    work.wait()
    c.finalize()
    return type(work).__name__


def test_without_the_switch_nothing_changes(ranks: Ranks) -> None:
    assert ranks.run(1, works_without_the_switch) == ["TorchWork"]


# --- compiled operations -------------------------------------------------------------------------------------------


def run_all(names: list[str], backend: str, is_async: bool) -> None:
    """All operations in one function, twice, and then each result."""
    c = comm()
    rank = c.get_rank()

    def all_of_them(inputs: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        works, results = [], []
        for name, x in zip(names, inputs):
            work, written = cases.ALL[name](c, x, is_async)
            works.append(work)
            results.append(written)
        for work in works:
            work.wait()
        # A use after the waits, in the graph.
        return [[one + 1 for one in written] for written in results]

    function = compiled(all_of_them, backend)
    for _ in range(2):
        inputs = [cases.values(rank) for _ in names]
        results = function(inputs)
        for name, x, result in zip(names, inputs, results):
            written, after = cases.expected(name, rank)
            assert [(one - 1).tolist() for one in result] == written, name
            assert x.tolist() == after, name
    c.finalize()


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("backend", short_of(["aot_eager"], ["eager", inductor]))
def test_operations_in_a_row_are_compiled(ranks: Ranks, backend: str, is_async: bool, tmp_path: Path) -> None:
    names = list(cases.ALL)
    deadline = deadline_of(backend)
    ranks.run(2, run_all, names, backend, is_async, env=environment(tmp_path), deadline=deadline)


def run_each(backend: str) -> None:
    for name in cases.ALL:
        for is_async in (False, True):
            run_all([name], backend, is_async)


@pytest.mark.skipif(not is_long(), reason="the long variant: each operation alone in a graph")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_each_operation_is_compiled_alone(ranks: Ranks, backend: str, tmp_path: Path) -> None:
    ranks.run(2, run_each, backend, env=environment(tmp_path), deadline=DEADLINE)


def optimise() -> None:
    c = comm()
    rank = c.get_rank()

    def function(x: torch.Tensor) -> torch.Tensor:
        before = x * 2
        work = c.broadcast(before[1:3], 1, True)
        c.all_reduce(x, ReduceOp.SUM, False)
        work.wait()
        return before + x

    run = compiled(function, "inductor")
    for _ in range(2):
        x = torch.full((4,), rank + 1.0)
        # What was read before the reduction; the middle is rank 1's.
        edge = 3.0 + 2 * (rank + 1)
        with torch.no_grad():
            assert run(x).tolist() == [edge, 7.0, 7.0, edge]
        assert x.tolist() == [3.0] * 4
    c.finalize()


@needs_compiler
@pytest.mark.timeout(INDUCTOR_DEADLINE + 60)
def test_inductor_keeps_order_and_waits(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(2, optimise, env=environment(tmp_path), deadline=INDUCTOR_DEADLINE)


def compile_variants() -> None:
    """Things that need a graph but no optimised code."""
    from torch._dynamo.testing import CompileCounter

    c = comm()
    rank, other = c.get_rank(), 1 - c.get_rank()

    def ones() -> torch.Tensor:
        return torch.ones(4)

    # No compilation per call.
    counter = CompileCounter()

    def summed(x: torch.Tensor) -> torch.Tensor:
        c.all_reduce(x, ReduceOp.SUM, async_op=True).wait()
        return x * 2

    function = compiled(summed, counter)
    for _ in range(4):
        assert function(ones()).tolist() == [4.0] * 4
    assert counter.frame_count == 1

    # The operators of the graph, in order; in place where that is possible.
    seen: list[str] = []

    def record(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        seen.extend(found[0] for name in targets if (found := re.findall(r"torchcomm_\w+", name)))
        return graph

    def several(x: torch.Tensor) -> torch.Tensor:
        c.all_reduce(x, ReduceOp.SUM, False)
        work = c.all_reduce(x, ReduceOp.SUM, True)
        c.barrier(False)
        work.wait()
        return x

    x = ones()
    out = compiled(several, record)(x)
    assert out is x and x.tolist() == [4.0] * 4
    assert seen == [
        *("torchcomm_all_reduce_", "torchcomm_all_reduce", "torchcomm_barrier_", "torchcomm_wait_tensors")
    ]

    # A communicator as an argument, its getters, and an operation on the value of another.
    def of_argument(comm: torchcomms.TorchComm, x: torch.Tensor) -> torch.Tensor:
        value = comm.all_reduce(x, ReduceOp.SUM, True)
        again = comm.all_reduce(value, ReduceOp.SUM, True)
        return again.sum() + comm.get_rank() + torch.mul(again, comm.get_size()) + 1

    for backend in ("eager", "aot_eager"):
        x = ones()
        assert compiled(of_argument, backend)(c, x).tolist() == [16.0 + rank + 8 + 1] * 4
        assert x.tolist() == [4.0] * 4

    # A work that is waited for outside.
    def started(x: torch.Tensor) -> Any:
        return c.all_reduce(x, ReduceOp.SUM, True), x * 3

    for backend in ("eager", "aot_eager"):
        x = ones()
        work, triple = compiled(started, backend)(x)
        assert not work.is_completed() and x.tolist() == [1.0] * 4
        work.wait()
        assert work.is_completed() and x.tolist() == [2.0] * 4 and triple.tolist() == [3.0] * 4

    # The input of an asynchronous operation may change in the graph, as its memory may be used again.
    def reused(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        temporary = x + 1
        output = x.new_empty(8)
        work = c.all_gather_single(output, temporary, True)
        temporary.zero_()
        work.wait()
        return output, temporary

    for backend in ("eager", "aot_eager"):
        output, temporary = compiled(reused, backend)(ones() * rank)
        assert output.tolist() == [1.0] * 4 + [2.0] * 4 and temporary.tolist() == [0.0] * 4

    # Another communicator, by the same code.
    two = comm()

    def by_name(comm: torchcomms.TorchComm, x: torch.Tensor) -> torch.Tensor:
        comm.all_reduce(x, ReduceOp.SUM, False)
        return x

    function = compiled(by_name, "eager")
    assert function(c, ones()).tolist() == function(two, ones()).tolist() == [2.0] * 4
    two.finalize()

    # Errors are those of the operation.
    def wrong(x: torch.Tensor) -> torch.Tensor:
        c.broadcast(x, 7, False)
        return x

    with pytest.raises(RuntimeError, match="root 7 is out of range"):
        compiled(wrong, "aot_eager")(ones())

    # Windows.
    window = c.new_window(torch.zeros(6))

    def put(x: torch.Tensor) -> torch.Tensor:
        window.put(x * 2, other, 1, False)
        work = window.put(x[:1], other, 5, True)
        work.wait()
        window.signal(other, False)
        read = x.new_empty(2)
        window.get(read, rank, 0, True, timeout=torchcomms.Timeout(seconds=30)).wait()
        return read + 1

    for backend in ("eager", "aot_eager"):
        compiled(put, backend)(torch.full((4,), rank + 1.0))
        window.wait_signal(other, False)
        assert window.get_tensor().tolist() == [0.0, *[2.0 * (other + 1)] * 4, other + 1.0]
        c.barrier(False)
        window.get_tensor().zero_()
        c.barrier(False)

    def waits(x: torch.Tensor) -> torch.Tensor:
        window.wait_signal(other, False)
        return x

    with pytest.raises(Exception, match="wait_signal"):
        compiled(waits, "eager")(ones())
    window.tensor_deregister()
    c.finalize()


def test_graphs_are_right_and_compiled_once(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(2, compile_variants, env=environment(tmp_path), deadline=DEADLINE)


# --- outside of compiled functions ---------------------------------------------------------------------------------


def use_results() -> None:
    from torchcomms.functional.async_tensor import FakeWork, TorchCommsAsyncTensor

    c = comm()
    rank, size = c.get_rank(), c.get_size()
    x = torch.ones(3)
    assert isinstance(c.all_reduce(x, ReduceOp.SUM, False), torchcomms.TorchWork)
    value: Any = c.all_reduce(x, ReduceOp.SUM, True)
    assert isinstance(value, TorchCommsAsyncTensor) and isinstance(value, torch.Tensor)
    assert value.shape == (3,) and value.dtype == torch.float32 and value.is_leaf and value.grad_fn is None
    assert (value + 1).tolist() == [5.0] * 3 and value.is_completed()
    assert value.status is torchcomms.WorkStatus.COMPLETED
    torch.testing.assert_close(value, torch.full((3,), 4.0))
    assert value.wait() is x and torch.cat([value, value]).shape == (6,)

    outputs = [torch.empty(1) for _ in range(size)]
    values: Any = c.all_gather(outputs, torch.tensor([float(rank)]), True)
    assert len(values) == size and torch.cat(values).tolist() == [0.0, 1.0]
    assert [one is output for one, output in zip(values.wait(), outputs)] == [True] * size

    # The next operation takes the value of one.
    again: Any = c.all_reduce(c.all_reduce(torch.ones(1), ReduceOp.SUM, True), ReduceOp.SUM, True)
    assert again.item() == 4.0
    # Without a result there is only the work.
    assert isinstance(c.barrier(True), torchcomms.TorchWork)
    root_only = c.gather(outputs, torch.ones(1), 0, True)
    assert isinstance(root_only, list) == (rank == 0)
    root_only.wait()

    waited = torch.ops.torchcomms.torchcomm_wait_tensors
    x = torch.ones(2)
    c.all_reduce(x, ReduceOp.SUM, True)
    assert [one.tolist() for one in waited([x])] == [[2.0] * 2]
    c.all_reduce(x, ReduceOp.SUM, True)
    returned = torch.ops.torchcomms.torchcomm_wait_tensors_([x])
    assert x.tolist() == [4.0] * 2 and len(returned) == 1 and returned[0] is x

    # Waiting has a gradient, in graphs too.
    def double(value: torch.Tensor) -> torch.Tensor:
        return waited([value * 2])[0] * 3  # type: ignore[no-any-return]

    def double_in_place(value: torch.Tensor) -> torch.Tensor:
        return torch.ops.torchcomms.torchcomm_wait_tensors_([value + 0])[0] * 3  # type: ignore[no-any-return]

    for function in (double, compiled(double, "aot_eager")):
        leaf = torch.ones(2, requires_grad=True)
        function(leaf).sum().backward()
        assert leaf.grad is not None and leaf.grad.tolist() == [6.0] * 2
    assert compiled(double_in_place, "aot_eager")(torch.ones(2)).tolist() == [3.0] * 2

    # A result without a work is complete.
    ready = TorchCommsAsyncTensor(x, None)
    assert ready.is_completed() and ready.status is torchcomms.WorkStatus.COMPLETED
    assert ready.wait() is x and ready.trigger_wait() is x and (ready + 1).tolist() == [5.0] * 2
    assert FakeWork().is_completed() and FakeWork(x).wait() is None
    assert torchcomms.functional.MIN_PYTORCH_VERSION_FOR_COMPILE.startswith("2.")

    # torch.distributed gets plain works.
    wrapper = torchcomms._comms._BackendWrapper(c)
    assert wrapper.get_comm() is c
    tensor = torch.ones(2, requires_grad=True)
    wrapper.allreduce([tensor]).wait()
    assert tensor.tolist() == [2.0] * 2 and tensor.grad_fn is None
    c.finalize()


def test_results_of_asynchronous_operations_wait_when_used(ranks: Ranks) -> None:
    ranks.run(2, use_results, env=ENABLED)


def use_fake() -> None:
    c = torchcomms.new_comm("fake", torch.device("cpu"), name="fake")
    window = c.new_window(torch.zeros(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        c.all_reduce(x, ReduceOp.SUM, True).wait()
        window.put(x, 0, 0, False)
        window.signal(0, True).wait()
        return x + 1

    assert compiled(function, "aot_eager")(torch.ones(2)).tolist() == [2.0] * 2
    c.finalize()


def test_the_fake_backend_is_compiled_too(ranks: Ranks) -> None:
    ranks.run(1, use_fake, env=ENABLED)
