"""The names, values, signatures and texts of `pccl` without a connection."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pccl
import pytest

NAMES = {
    "cuda",
    "Communicator",
    "MasterNode",
    "ReduceOp",
    "Attribute",
    "SharedStateSyncStrategy",
    "DataType",
    "DistributionHint",
    "QuantizationAlgorithm",
    "ReduceOperandDescriptor",
    "QuantizationOptions",
    "ReduceDescriptor",
    "TensorInfo",
    "SharedState",
    "SharedStateSyncInfo",
    "ReduceInfo",
    "ReduceOpDescriptor",
    "AsyncReduceHandle",
    "PCCLError",
}

VALUES: dict[type[Enum], str] = {
    pccl.DataType: "UINT8 INT8 INT16 UINT16 UINT32 INT32 UINT64 INT64 FLOAT16 BFLOAT16 FLOAT DOUBLE",
    pccl.ReduceOp: "SUM AVG PROD MAX MIN",
    pccl.QuantizationAlgorithm: "NONE MIN_MAX ZERO_POINT_SCALE",
    pccl.DistributionHint: "NONE NORMAL UNIFORM",
    pccl.DeviceType: "CPU CUDA",
    pccl.SharedStateSyncStrategy: "ENFORCE_POPULAR RECEIVE_ONLY SEND_ONLY",
    pccl.Result: "SUCCESS NOT_INITIALIZED INTERNAL_ERROR INVALID_ARGUMENT INVALID_USAGE TOO_FEW_PEERS "
    "MASTER_CONNECTION_FAILED RANK_CONNECTION_FAILED RANK_CONNECTION_LOST NO_SHARED_STATE_AVAILABLE "
    "PENDING_ASYNC_OPS UPDATE_TOPOLOGY_FAILED TOPOLOGY_OPTIMIZATION_FAILED SHARED_STATE_SYNC_FAILED "
    "REMOTE_ERROR",
}


def test_all_names_exactly_what_users_import_with_a_star() -> None:
    assert set(pccl.__all__) == NAMES
    names: dict[str, Any] = {}
    exec("from pccl import *", names)
    assert names.keys() >= NAMES
    assert pccl.__version__.count(".") == 2 and pccl.DeviceType.CPU and not pccl.Result.SUCCESS
    assert pccl.cuda.is_available() in (True, False)


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_enums_count_from_zero_in_the_order_of_the_header(kind: type[Enum]) -> None:
    assert [(member.name, member.value) for member in kind] == [
        (name, value) for value, name in enumerate(VALUES[kind].split())
    ]


def test_attributes_have_the_values_of_the_header_and_all_names() -> None:
    of: Any = pccl.Attribute
    assert (of.GLOBAL_WORLD_SIZE.value, of.PEER_GROUP_WORLD_SIZE.value) == (1, 2)
    assert of.LOCAL_WORLD_SIZE is of.PEER_GROUP_WORLD_SIZE is of.CURRENT_WORLD_SIZE
    assert (of.NUM_DISTINCT_PEER_GROUPS.value, of.LARGEST_PEER_GROUP_WORLD_SIZE.value) == (3, 4)
    results: Any = pccl.Result
    assert results.OPTIMIZE_TOPOLOGY_FAILED is results.TOPOLOGY_OPTIMIZATION_FAILED
    assert results.SYSTEM_ERROR is results.INTERNAL_ERROR


LIBRARY = {"FLOAT": "float32", "DOUBLE": "float64"}


@pytest.mark.parametrize("dtype", pccl.DataType, ids=lambda dtype: dtype.name)
def test_every_type_has_its_name_in_numpy_and_back(dtype: pccl.DataType) -> None:
    np = pytest.importorskip("numpy")
    if dtype is pccl.DataType.BFLOAT16:
        with pytest.raises(TypeError, match="uint16"):
            dtype.to_numpy_dtype()
        return
    known = np.dtype(LIBRARY.get(dtype.name, dtype.name.lower()))
    assert dtype.to_numpy_dtype() == known
    assert pccl.DataType.from_numpy_dtype(known) is dtype
    assert pccl.DataType.from_numpy_dtype(known.type) is dtype


@pytest.mark.parametrize("dtype", pccl.DataType, ids=lambda dtype: dtype.name)
def test_every_type_has_its_name_in_torch_and_back(dtype: pccl.DataType) -> None:
    torch = pytest.importorskip("torch")
    known = getattr(torch, LIBRARY.get(dtype.name, dtype.name.lower()))
    assert dtype.to_torch_dtype() is known
    assert pccl.DataType.from_torch_dtype(known) is dtype
    kind = pccl.DeviceType.from_torch_device_type
    assert kind("cpu") is kind(torch.device("cpu")) is pccl.DeviceType.CPU
    assert kind(torch.device("cuda", 1)) is kind("cuda:0") is pccl.DeviceType.CUDA
    with pytest.raises(ValueError, match="meta"):
        kind("meta")


def test_irreducible_types_are_a_type_error() -> None:
    np = pytest.importorskip("numpy")
    for unfit in (bool, complex, ">f4", "U3", object):
        with pytest.raises(TypeError):
            pccl.DataType.from_numpy_dtype(np.dtype(unfit))


def test_an_error_has_its_result_and_its_text() -> None:
    error = pccl.PCCLError(pccl.Result.RANK_CONNECTION_LOST, "all_reduce: p1 died")
    assert isinstance(error, Exception) and error.result is pccl.Result.RANK_CONNECTION_LOST
    assert str(error) == "RANK_CONNECTION_LOST: all_reduce: p1 died" and error.is_retryable
    for result in pccl.Result:
        assert result.name in str(pccl.PCCLError(result)) and result.name in str(pccl.PCCLError(result, "x"))
    assert not pccl.PCCLError(pccl.Result.INVALID_ARGUMENT).is_retryable
    # Tracebacks show the public name.
    assert (pccl.PCCLError.__module__, pccl.PCCLError.__qualname__) == ("pccl", "PCCLError")


@pytest.mark.parametrize("result", [result for result in pccl.Result if result], ids=lambda r: r.name)
def test_every_failure_is_a_class_that_except_can_name(result: pccl.Result) -> None:
    own: Any = getattr(pccl, result.name.title().replace("_", ""))
    with pytest.raises(own, match=f"^{result.name}: why$") as caught:
        raise pccl.PCCLError(result, "why")
    assert type(caught.value) is own and issubclass(own, pccl.PCCLError) and own is not pccl.PCCLError
    assert own.__module__ == "pccl" and caught.value.result is result
    with pytest.raises(own):
        pccl.PCCLError.check(result.value)


def test_calls_raise_the_class_of_their_result_and_check_raises_nothing_for_success() -> None:
    with pytest.raises(pccl.InvalidUsage):
        pccl.Communicator("127.0.0.1:1").update_topology()
    with pytest.raises(pccl.InvalidArgument):
        pccl.MasterNode("nonsense").run()
    pccl.PCCLError.check(pccl.Result.SUCCESS)
    pccl.PCCLError.check(0)
    assert pccl.OptimizeTopologyFailed is pccl.TopologyOptimizationFailed


@pytest.mark.parametrize("again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_an_error_survives_pickling(again: Any) -> None:
    error = pccl.PCCLError(pccl.Result.RANK_CONNECTION_LOST, "they differ", False)
    twin = again(error)
    assert type(twin) is pccl.RankConnectionLost and str(twin) == str(error)
    assert twin.result is error.result and twin.is_retryable is False
    late = again(pccl.PCCLError(pccl.Result.RANK_CONNECTION_LOST, "late", True, "timeout"))
    assert type(late) is pccl.OperationTimedOut and isinstance(late, pccl.RankConnectionLost)
    assert (late.kind, late.result, str(late)) == ("timeout", error.result, "RANK_CONNECTION_LOST: late")


def test_descriptors_are_made_by_position_and_by_keyword() -> None:
    operand = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT)
    assert operand == pccl.ReduceOperandDescriptor(
        datatype=pccl.DataType.FLOAT, distribution_hint=pccl.DistributionHint.NONE
    )
    options = pccl.QuantizationOptions(pccl.DataType.UINT8)
    assert (options.quantized_datatype, options.algorithm) == (
        pccl.DataType.UINT8,
        pccl.QuantizationAlgorithm.MIN_MAX,
    )
    assert options == pccl.QuantizationOptions(
        quantized_datatype=pccl.DataType.UINT8, algorithm=pccl.QuantizationAlgorithm.MIN_MAX
    )
    assert options == pccl.QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.MIN_MAX)
    assert pccl.QuantizationOptions().algorithm is pccl.QuantizationAlgorithm.NONE
    what = pccl.ReduceDescriptor(8, pccl.ReduceOp.AVG, 3, operand, options)
    assert what == pccl.ReduceDescriptor(
        count=8, op=pccl.ReduceOp.AVG, tag=3, operand_descriptor=operand, quantization_options=options
    )
    assert (what.count, what.op, what.tag) == (8, pccl.ReduceOp.AVG, 3)
    info = pccl.ReduceInfo(local_world_size=2, tx_bytes=3, rx_bytes=4)
    assert info == pccl.ReduceInfo(2, 3, 4) and info.world_size == 2


def test_descriptors_can_be_changed_after_they_were_made() -> None:
    options = pccl.QuantizationOptions()
    options.quantized_datatype, options.algorithm = pccl.DataType.INT8, pccl.QuantizationAlgorithm.MIN_MAX
    operand = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT)
    operand.distribution_hint = pccl.DistributionHint.NORMAL
    what = pccl.ReduceDescriptor(8)
    what.count, what.tag, what.quantization_options = 9, 1, options
    item = pccl.ReduceOpDescriptor(None, None, what)
    item.reduce_descriptor.op = pccl.ReduceOp.MAX
    assert (what.count, what.tag, what.op, what.quantization_options) == (9, 1, pccl.ReduceOp.MAX, options)


def test_operations_are_made_from_numpy_and_from_torch() -> None:
    what = pccl.ReduceDescriptor(4)
    ways: dict[str, Any] = {
        "numpy": pccl.ReduceOpDescriptor.from_numpy,
        "torch": pccl.ReduceOpDescriptor.from_torch,
    }
    for library, of in ways.items():
        ones = pytest.importorskip(library).ones(4)
        made = of(send=ones, recv=ones, reduce_descriptor=what)
        assert made == of(ones, ones, what) and made.send is ones and made.reduce_descriptor is what
        with pytest.raises(TypeError, match=library):
            of([1.0], ones, what)


def test_a_shared_state_accepts_all_documented_arguments() -> None:
    np = pytest.importorskip("numpy")
    array = np.zeros((2, 3), np.float32)
    seed = pccl.TensorInfo(name="array", data=array, allow_content_inequality=False)
    assert pccl.TensorInfo.from_numpy(array, "array").data_ptr == seed.data_ptr == array.ctypes.data
    assert pccl.TensorInfo.from_numpy(tensor=array, name="array").data_ptr == seed.data_ptr
    by_address = pccl.TensorInfo(
        "array",
        array.ctypes.data,
        numel=6,
        dtype=pccl.DataType.FLOAT,
        device_type=pccl.DeviceType.CPU,
        allow_content_inequality=True,
    )
    assert (by_address.numel, by_address.dtype, by_address.device_type) == (
        seed.numel,
        seed.dtype,
        seed.device_type,
    )
    assert by_address.allow_content_inequality and not seed.allow_content_inequality
    state = pccl.SharedState([seed])
    assert state.revision == 0
    state.push_revision()
    assert state.revision == 1
    state.revision = 7
    assert pccl.SharedState(infos=[seed]).revision == 0 and state.revision == 7
    assert pccl.SharedState(tensor_infos=[seed]).infos == [seed]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pccl.TensorInfo("x"),
        lambda: pccl.TensorInfo("x", 4096),
        lambda: pccl.TensorInfo("x", 4096, data=bytearray(3)),
        lambda: pccl.TensorInfo(3, data=bytearray(3)),  # type: ignore[arg-type]
        lambda: pccl.TensorInfo("x", data=[1.0, 2.0]),
        lambda: pccl.TensorInfo("x", data=bytearray(3), dtype=pccl.DataType.FLOAT),
        lambda: pccl.SharedState([bytearray(3)]),  # type: ignore[list-item]
        pccl.SharedState,
        lambda: pccl.SharedState([], infos=[]),
    ],
)
def test_a_state_of_something_else_is_a_type_error(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: pccl.TensorInfo("x", 0, numel=3, dtype=pccl.DataType.FLOAT),
        lambda: pccl.TensorInfo("x", data=bytearray(3), numel=4),
        lambda: pccl.TensorInfo("x", data=b"read only"),
        lambda: pccl.SharedState([pccl.TensorInfo("x", data=bytearray(3))] * 2),
    ],
)
def test_an_invalid_state_is_a_value_error_with_the_reason(make: Any) -> None:
    with pytest.raises(ValueError, match="x|null"):
        make()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:99999", "host:"])
def test_an_invalid_address_is_rejected_by_its_form(address: str) -> None:
    with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*host:port"):
        pccl.Communicator(address)


def public() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("pccl", pccl), ("pccl.cuda.is_available", pccl.cuda.is_available)]
    for name in [*pccl.__all__, "Result", "DeviceType"]:
        thing = getattr(pccl, name)
        found.append((name, thing))
        if inspect.isclass(thing):
            members = [
                (key, value)
                for key, value in vars(thing).items()
                if not key.startswith("_") and callable(value)
            ]
            members += [(key, value) for key, value in vars(thing).items() if isinstance(value, property)]
            found += [(f"{name}.{key}", value) for key, value in members if not isinstance(value, Enum)]
    return found


@pytest.mark.parametrize("name, thing", public(), ids=[name for name, _ in public()])
def test_help_says_something_about(name: str, thing: Any) -> None:
    words = inspect.getdoc(thing) or ""
    # What dataclasses write by themselves repeats the fields.
    assert len(words) > 10 and not words.startswith(f"{name}("), f"{name} has no words of its own"


def test_help_of_the_module_shows_a_first_program() -> None:
    text = pydoc.plain(pydoc.render_doc(pccl))
    for word in (
        "connect",
        "update_topology",
        "sync_shared_state",
        "all_reduce",
        "pccl_master",
        "MasterNode",
    ):
        assert word in text


def test_neither_numpy_nor_torch_is_imported_by_pccl() -> None:
    code = "import sys, pccl, ringfold; sys.exit(bool({'numpy', 'torch'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_stubs_match_the_native_module(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # The package mentions torch, whose types take a minute to read.
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    words = [sys.executable, "-m", "mypy.stubtest", "ringfold._native", "--ignore-disjoint-bases"]
    words += ["--mypy-config-file", str(settings)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
