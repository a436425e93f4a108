"""The search for NaN."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torchcomms  # noqa: E402
from ranks import Ranks  # noqa: E402
from torchcomms import ReduceOp, TorchComm  # noqa: E402
from torchcomms.hooks import NanCheckHook  # noqa: E402

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def comm() -> Iterator[TorchComm]:
    comm = torchcomms.new_comm("fake", torch.device("cpu"), name="numbers")
    yield comm
    comm.finalize()


def _bad() -> Any:
    return torch.tensor([1.0, NAN, 3.0])


def _good() -> Any:
    return torch.tensor([1.0, INF, -INF])


def _calls(comm: TorchComm, input: Any, output: Any) -> dict[str, Callable[[], object]]:
    """Operations that have a tensor to read and another one to write."""
    op = ReduceOp.SUM

    def batch() -> None:
        batch = comm.batch_op_create()
        batch.recv(output, 0)
        batch.send(input, 0)
        batch.issue(False)

    handle = comm.all_gather_p_init(torch.ones(1))
    handle._output = output
    return {
        "all_gather": lambda: comm.all_gather([torch.ones(1), output], input, False),
        "all_gather_v": lambda: comm.all_gather_v([output], input, False),
        "all_gather_single": lambda: comm.all_gather_single(output, input, False),
        "reduce_scatter": lambda: comm.reduce_scatter(output, [torch.ones(1), input], op, False),
        "reduce_scatter_v": lambda: comm.reduce_scatter_v(output, [input], op, False),
        "reduce_scatter_single": lambda: comm.reduce_scatter_single(output, input, op, False),
        "all_to_all_single": lambda: comm.all_to_all_single(output, input, False),
        "all_to_all_v_single": lambda: comm.all_to_all_v_single(output, input, [3], [3], False),
        "all_to_all": lambda: comm.all_to_all([output], [input], False),
        "scatter": lambda: comm.scatter(output, [input], 0, False),
        "gather": lambda: comm.gather([output], input, 0, False),
        "gather_single": lambda: comm.gather_single(output, input, 0, False),
        "all_gather_p_exec": lambda: comm.all_gather_p_exec(handle, input),
        "batch_op_issue": batch,
    }


def test_nan_in_an_input_is_found_before_the_operation_and_everything_is_named(comm: TorchComm) -> None:
    NanCheckHook().register_with_comm(comm)
    for name, call in _calls(comm, _bad(), _good()).items():
        with pytest.raises(RuntimeError, match=f"(?i)nan.*input of {name} on communicator 'numbers'"):
            call()
    in_place: dict[str, Callable[[], object]] = {
        "send": lambda: comm.send(_bad(), 0, False),
        "broadcast": lambda: comm.broadcast(_bad(), 0, False),
        "all_reduce": lambda: comm.all_reduce(_bad(), ReduceOp.SUM, True),
        "reduce": lambda: comm.reduce(_bad(), 0, ReduceOp.SUM, False),
    }
    for name, call in in_place.items():
        with pytest.raises(RuntimeError, match=f"input of {name} on"):
            call()


def test_outputs_are_not_looked_at_unless_asked_for(comm: TorchComm) -> None:
    NanCheckHook().register_with_comm(comm)
    for call in _calls(comm, _good(), _bad()).values():
        call()
    comm.recv(_bad(), 0, False)
    comm.barrier(False)
    comm.split([])


def test_nan_in_an_output_is_found_before_the_operation_if_asked_for(comm: TorchComm) -> None:
    NanCheckHook(check_inputs=False, check_outputs=True).register_with_comm(comm)
    for name, call in _calls(comm, _bad(), _bad()).items():
        with pytest.raises(RuntimeError, match=f"output of {name} on communicator 'numbers'"):
            call()
    with pytest.raises(RuntimeError, match="output of recv on"):
        comm.recv(_bad(), 0, False)
    with pytest.raises(RuntimeError, match="output of all_reduce on"):
        comm.all_reduce(_bad(), ReduceOp.SUM, False)
    for call in _calls(comm, _bad(), _good()).values():
        call()


def test_only_nan_is_found_in_all_types_that_have_it(comm: TorchComm) -> None:
    NanCheckHook().register_with_comm(comm)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn):
        fine = torch.tensor([0.0, 1.0, -2.0]).to(dtype)
        comm.broadcast(fine, 0, False)
        with pytest.raises(RuntimeError, match="NaN"):
            comm.broadcast(_bad().to(dtype), 0, False)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        comm.broadcast(torch.tensor([INF, -INF, torch.finfo(dtype).max], dtype=dtype), 0, False)
    for dtype in (torch.int64, torch.uint8, torch.bool):
        comm.broadcast(torch.ones(3, dtype=dtype), 0, False)
    comm.broadcast(torch.empty(0), 0, False)
    comm.broadcast(torch.ones(3, requires_grad=True), 0, False)


def test_one_that_checks_nothing_is_not_enabled(comm: TorchComm) -> None:
    hook = NanCheckHook(check_inputs=False)
    hook.register_with_comm(comm)
    assert not hook.is_enabled()
    comm.all_reduce(_bad(), ReduceOp.SUM, False)


def test_one_is_enabled_while_it_is_registered() -> None:
    comm = torchcomms.new_comm("fake", torch.device("cpu"))
    for hook in (NanCheckHook(), NanCheckHook(False, True)):
        assert not hook.is_enabled()
        hook.register_with_comm(comm)
        assert hook.is_enabled()
    comm.finalize()
    del comm
    gc.collect()
    assert not hook.is_enabled()


def test_memory_that_a_broadcast_overwrites_may_hold_anything(ranks: Ranks) -> None:
    assert ranks.run(2, _broadcast) == [[1.0, 1.0, 1.0]] * 2


def _broadcast() -> list[float]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="numbers")
    NanCheckHook().register_with_comm(comm)
    tensor = torch.ones(3) if comm.get_rank() == 0 else _bad()
    comm.broadcast(tensor, 0, False)
    values: list[float] = tensor.tolist()
    # Lists of ranks that are not the root may hold anything, too.
    comm.scatter(torch.empty(3), [torch.ones(3)] * 2 if comm.get_rank() == 0 else [_bad()], 0, False)
    comm.finalize()
    return values
