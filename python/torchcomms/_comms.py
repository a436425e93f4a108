"""All public names of communicators. Torch imports this module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchcomms import _hook_args, _options
from torchcomms._abort import AbortInfo, AbortReason
from torchcomms._allocator import get_mem_allocator
from torchcomms._batch import BatchSendRecv, P2POp, P2POpType
from torchcomms._comm import TorchComm
from torchcomms._hook_args import *  # noqa: F403
from torchcomms._new_comm import new_comm
from torchcomms._op_name import OpName
from torchcomms._options import *  # noqa: F403
from torchcomms._persistent import AllGatherHandle
from torchcomms._python_backend import TorchCommBackend
from torchcomms._reduce_op import RedOpType, ReduceOp
from torchcomms._registry import _is_backend_registered, register_backend
from torchcomms._removable import RemovableHandle
from torchcomms._work import TorchWork, WorkStatus

if TYPE_CHECKING:
    from torchcomms._backend_wrapper import _BackendWrapper as _BackendWrapper
    from torchcomms._window import TorchCommWinAccessType as TorchCommWinAccessType
    from torchcomms._window import TorchCommWindow as TorchCommWindow
    from torchcomms._window import TorchCommWindowAttr as TorchCommWindowAttr

__all__ = ["AbortInfo", "AbortReason", "AllGatherHandle", "BatchSendRecv", "OpName", "P2POp"]
__all__ += ["P2POpType", "RedOpType", "ReduceOp", "RemovableHandle"]
__all__ += ["TorchComm", "TorchCommBackend", "TorchWork", "WorkStatus", "_is_backend_registered"]
__all__ += ["get_mem_allocator", "new_comm", "register_backend"]
__all__ += _options.__all__
__all__ += _hook_args.__all__

# Imported on first use: these need torch, or are seldom used.
LATE = {
    "TorchCommWinAccessType": "torchcomms._window",
    "TorchCommWindow": "torchcomms._window",
    "TorchCommWindowAttr": "torchcomms._window",
    "_BackendWrapper": "torchcomms._backend_wrapper",
}


def __getattr__(name: str) -> Any:
    module = LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *LATE})
