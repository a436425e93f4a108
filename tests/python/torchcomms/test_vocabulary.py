"""The operations of torchcomms against the engine's table of operations."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from ringfold import _native
from torchcomms import OpName, TorchComm, TorchCommBackend
from torchcomms._call import FIELDS, Call
from torchcomms._operands import SPECS

# What hooks see beside operations that the engine carries out.
PREPARATIONS = {OpName.all_gather_p_init, OpName.all_gather_p_free}
OTHERS = {OpName.batch_op_issue, OpName.split, OpName.new_window, OpName.finalize}
# Operations of the engine that torchcomms has no name for.
UNUSED = {"gather_v", "scatter_v"}
WORLD = 2


def test_every_name_is_an_operation_of_the_engine_or_none_by_intention() -> None:
    assert set(SPECS) == set(OpName) - PREPARATIONS - OTHERS
    assert {spec.native for spec in SPECS.values()} == set(_native.OPERATIONS) - UNUSED
    assert set(FIELDS) == set(SPECS) | PREPARATIONS


def test_the_table_names_only_arguments_that_are_known() -> None:
    known = {"root", "src", "dst", "reduce", "counts", "others", "root_counts", "tag"}
    assert {argument for takes in _native.OPERATIONS.values() for argument in takes} == known


@pytest.mark.parametrize("op", SPECS, ids=lambda op: op.name)
def test_methods_and_hooks_take_what_the_engine_takes(op: OpName) -> None:
    spec = SPECS[op]
    fields = FIELDS[op]
    assert ("peer" in fields, "reduce" in fields) == (bool(spec.peer), spec.reduces)
    kinds = [TorchComm] if op is OpName.all_gather_p_exec else [TorchComm, TorchCommBackend]
    for kind in kinds:
        takes = inspect.signature(getattr(kind, op.name)).parameters
        assert {"root", "src", "dst"} & set(takes) == ({spec.peer} if spec.peer else set())
        assert ("op" in takes) == spec.reduces


def operands_of(op: OpName) -> dict[str, Any]:
    """Tensors that fit, as many as there are."""
    one, whole, parts = torch.zeros(2), torch.zeros(2 * WORLD), [torch.zeros(2) for _ in range(WORLD)]
    if op is OpName.all_to_all_v_single:
        return {"input": whole, "output": whole, "input_split_sizes": [2, 2], "output_split_sizes": [2, 2]}
    fitting: list[dict[str, Any]] = [
        *({"input": one, "output": one}, {"input": one, "output": parts}, {"input": parts, "output": one}),
        *(
            {"input": parts, "output": parts},
            {"input": one, "output": whole},
            {"input": whole, "output": one},
        ),
    ]
    for operands in fitting:
        try:
            SPECS[op].operands(Call(op, False, **operands, peer=0), 0, WORLD)
        except RuntimeError:
            continue
        return operands
    raise AssertionError(f"no tensors fit {op}")


@pytest.mark.parametrize("op", SPECS, ids=lambda op: op.name)
def test_counts_are_given_where_the_engine_takes_them(op: OpName) -> None:
    spec = SPECS[op]
    found = spec.operands(Call(op, False, **operands_of(op), peer=0), 0, WORLD)
    takes = _native.OPERATIONS[spec.native]
    assert (found.counts is not None, found.others is not None) == ("counts" in takes, "others" in takes)
