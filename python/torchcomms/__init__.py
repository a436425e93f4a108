"""Communicators for PyTorch: collectives, transfers, windows, and recovery from faults.

    import torch, torchcomms

    comm = torchcomms.new_comm("ringfold", torch.device("cpu"), name="main")
    tensor = torch.ones(10) * comm.get_rank()
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, async_op=False)
    comm.finalize()

Torch imports this package during its own import, so torch is only imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchcomms import _comms
from torchcomms._comms import *  # noqa: F403
from torchcomms._registry import built_backends, is_backend_built

if TYPE_CHECKING:
    import torchcomms.device_mesh as device_mesh
    from torchcomms import distwrap, functional, hooks, objcol
    from torchcomms._window import TorchCommWinAccessType as TorchCommWinAccessType
    from torchcomms._window import TorchCommWindow as TorchCommWindow
    from torchcomms._window import TorchCommWindowAttr as TorchCommWindowAttr

__all__ = [
    "built_backends",
    "device_mesh",
    "distwrap",
    "functional",
    "hooks",
    "is_backend_built",
    "objcol",
]
__all__ += _comms.__all__

_MODULES = frozenset({"device_mesh", "distwrap", "functional", "hooks", "objcol"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"torchcomms.{name}")
    if name in _comms.LATE:
        return getattr(_comms, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_comms.LATE})
