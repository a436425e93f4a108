"""Public names, and imports in any order."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torchcomms
from torchcomms import OpName, RedOpType, ReduceOp

NAMES = """
    new_comm TorchComm TorchWork ReduceOp CommOptions BatchP2POptions ReconfigureOptions Timeout hooks objcol device_mesh
    register_backend is_backend_built built_backends get_mem_allocator functional TorchCommBackend OpName RemovableHandle RedOpType
    WorkStatus P2POp P2POpType BatchSendRecv TorchCommWindow TorchCommWindowAttr TorchCommWinAccessType AllReducePreHookArgs
    AllToAllVSinglePreHookArgs CollectivePostHookArgs SplitPostHookArgs NewWindowPostHookArgs BatchOpIssuePostHookArgs
    FinalizePostHookArgs
""".split()
OF_COMMS = [
    *(
        "_BackendWrapper",
        "_is_backend_registered",
        "TorchCommBackend",
        "OpName",
        "RemovableHandle",
        "new_comm",
    ),
    *("TorchComm", "ReduceOp", "AllReducePreHookArgs", "TorchCommWindow", "RedOpType", "WorkStatus", "P2POp"),
    *("get_mem_allocator", "register_backend"),
]


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_there(name: str) -> None:
    assert getattr(torchcomms, name) is not None
    assert name in dir(torchcomms)


def test_names_that_torch_asks_for_are_there() -> None:
    import torchcomms._comms as comms

    for name in OF_COMMS:
        assert getattr(comms, name) is not None
    for name in comms.__all__:
        assert getattr(torchcomms, name) is getattr(comms, name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = torchcomms.nothing
    with pytest.raises(ImportError):
        from torchcomms._comms import nothing  # noqa: F401


@pytest.mark.parametrize("order", ["import torch, torchcomms", "import torchcomms, torch"])
def test_either_may_be_imported_first(order: str) -> None:
    code = f"""
{order}
from torchcomms._comms import _BackendWrapper
from torchcomms._c10d_backend import IS_BACKEND
c10d = torch._C._distributed_c10d
# Before torch 2.14, Python classes cannot derive from Backend.
assert issubclass(_BackendWrapper, c10d.Backend if IS_BACKEND else c10d.ProcessGroup)
comm = torchcomms.new_comm("fake", torch.device("cpu"))
comm.barrier(False)
comm.finalize()
# torch 2.15 and later look for the package while they are imported.
import torch.distributed.distributed_c10d as c10d
print(getattr(c10d, "_TORCHCOMM_AVAILABLE", True))
"""
    assert python(code).split() == ["True"]


def test_the_package_alone_imports_neither_torch_nor_the_native_module() -> None:
    code = "import sys, torchcomms; print('torch' in sys.modules, 'ringfold._native' in sys.modules)"
    assert python(code).split() == ["False", "False"]


def test_torch_alone_does_not_load_the_native_module() -> None:
    assert python("import sys, torch; print('ringfold._native' in sys.modules)").split() == ["False"]


def test_it_is_an_ordinary_package_on_disk() -> None:
    assert torchcomms.__file__ is not None and torchcomms.__file__.endswith("__init__.py")


def test_reductions_compare_by_value_and_copy() -> None:
    assert ReduceOp(RedOpType.SUM) == ReduceOp.SUM and ReduceOp.SUM.type is RedOpType.SUM
    assert {RedOpType(i).name for i in range(9)} == set(
        "SUM PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM AVG".split()
    )
    factor = ReduceOp.PREMUL_SUM(torch.tensor([2.0]))
    assert factor == ReduceOp.PREMUL_SUM(2.0) != ReduceOp.PREMUL_SUM(3.0)
    assert factor.type is RedOpType.PREMUL_SUM
    memo: dict[int, object] = {}
    for op in (ReduceOp.MAX, factor):
        assert copy.copy(op) == op == pickle.loads(pickle.dumps(op))
        twin = copy.deepcopy(op, memo)
        assert twin == op and memo[id(op)] is twin


def test_operation_names_can_be_keys_and_end_in_the_name() -> None:
    assert str(OpName.all_reduce).endswith(".all_reduce") and {OpName.split: 1}[OpName.split] == 1
    assert {"batch_op_issue", "split", "new_window", "finalize", "all_gather_p_exec"} <= {
        op.name for op in OpName
    }


def test_timeouts_are_timedeltas() -> None:
    assert torchcomms.Timeout(seconds=5) == timedelta(seconds=5)
