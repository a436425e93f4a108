"""Options of single operations, as objects."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torchcomms
from ranks import Ranks
from torchcomms import OpName, ReduceOp, TorchComm, TorchCommWindow, _hints
from torchcomms._operands import SPECS
from torchcomms._options import OperationOptions

TAG = "ringfold::tag"


def _class_of(name: str) -> Any:
    return getattr(torchcomms, name.title().replace("_", "") + "Options")


@pytest.mark.parametrize("op", [*SPECS, OpName.all_gather_p_init], ids=lambda op: op.name)
def test_every_operation_has_a_class_and_takes_it(op: OpName) -> None:
    kind = _class_of(op.name)
    options = kind(hints={"a": "b"}, timeout=5.0)
    assert isinstance(options, OperationOptions) and options.hints == {"a": "b"} and options.timeout == 5.0
    assert kind().hints == {} and kind().timeout is None
    assert list(inspect.signature(getattr(TorchComm, op.name)).parameters)[-3:] == [
        "hints",
        "timeout",
        "options",
    ]


@pytest.mark.parametrize("name", ["put", "get", "signal", "wait_signal"])
def test_windows_do_too(name: str) -> None:
    assert issubclass(_class_of(name), OperationOptions)
    assert list(inspect.signature(getattr(TorchCommWindow, name)).parameters)[-1] == "options"


def test_the_variable_exchange_has_two_names() -> None:
    assert torchcomms.AllToAllvSingleOptions is torchcomms.AllToAllVSingleOptions


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchComm]:
    monkeypatch.setattr(_hints, "_warned", set())
    comm = torchcomms.new_comm("fake", torch.device("cpu"), "alone")
    yield comm
    comm.finalize()


def test_hooks_see_the_timeout_and_hints_are_checked(alone: TorchComm) -> None:
    seen: list[Any] = []
    alone.register_pre_hook(lambda op, number, args: seen.append(args.timeout))
    options = torchcomms.AllReduceOptions(timeout=5.0)
    tensor = torch.ones(1)
    alone.all_reduce(tensor, ReduceOp.SUM, False, options=options)
    alone.all_reduce(tensor, ReduceOp.SUM, False, options)
    alone.all_reduce(tensor, ReduceOp.SUM, False, None, 6.0, options)
    alone.barrier(False, torchcomms.BarrierOptions(timeout=7.0))
    assert seen == [5.0, 5.0, 6.0, 7.0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            alone.broadcast(tensor, 0, False, options=torchcomms.BroadcastOptions(hints={"x::y": "1"}))
            alone.all_gather_p_init(tensor, {"x::z": "1"})
    assert [str(one.message) for one in caught] == [
        f"unknown hint {name!r}: it has no effect" for name in ("x::y", "x::z")
    ]


def test_other_objects_are_rejected(alone: TorchComm) -> None:
    wrong: Any = 5
    with pytest.raises(TypeError, match="invalid options 5"):
        alone.barrier(False, options=wrong)
    with pytest.raises(TypeError, match="given twice"):
        alone.barrier(False, torchcomms.BarrierOptions(), options=torchcomms.BarrierOptions())


def transfer() -> list[float]:
    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), "options", timeout=30.0)
    first, second = torch.zeros(1), torch.zeros(1)
    if comm.get_rank() == 0:
        comm.send(torch.ones(1), 1, True, options=torchcomms.SendOptions(hints={TAG: "1"}))
        comm.send(torch.ones(1) * 2, 1, True, torchcomms.SendOptions(hints={TAG: "2"}))
    else:
        comm.recv(second, 0, False, options=torchcomms.RecvOptions(hints={TAG: "2"}))
        comm.recv(first, 0, False, {TAG: "1"}, options=torchcomms.RecvOptions(hints={TAG: "2"}))
    comm.barrier(False)
    try:
        if comm.get_rank() == 0:
            comm.barrier(False, options=torchcomms.BarrierOptions(timeout=0.1))
    except RuntimeError as error:
        assert "rank 1" in str(error)
        first[0] = -1.0
    comm.finalize()
    return [first.item(), second.item()]


def test_hints_and_timeouts_of_options_apply(ranks: Ranks) -> None:
    assert ranks.run(2, transfer) == [[-1.0, 0.0], [1.0, 2.0]]
