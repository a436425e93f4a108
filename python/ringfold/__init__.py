"""Ringfold: training that survives the loss of machines.

``ringfold.Run`` is an elastic training loop: it joins a run, accepts new peers, keeps the state of all peers equal bit for
bit, averages gradients, and continues when a peer dies. ``ringfold.DiLoCo`` wraps a PyTorch model and an outer optimiser,
for peers that communicate rarely. Both are built on the package ``pccl``, whose calls may be mixed with them.
``ringfold.empty`` makes arrays that the other ranks of a host reduce in place, without copies between them.

    >>> import ringfold
    >>> ringfold.__version__.count(".")
    2

A run needs a master. Start it with ``ringfold master`` (or ``pccl_master``) on a machine that all peers can reach.
``ringfold demo`` shows a run that loses a peer.

numpy and torch are imported only when needed; either is enough.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ringfold._native import __version__

if TYPE_CHECKING:
    from ringfold._shared_buffer import empty
    from ringfold.diloco import DiLoCo
    from ringfold.elastic import Run

__all__ = ["DiLoCo", "Run", "__version__", "empty"]

# The modules of lazy names: DiLoCo needs torch, which is optional and takes seconds to import.
_MODULES = {"DiLoCo": "ringfold.diloco", "Run": "ringfold.elastic", "empty": "ringfold._shared_buffer"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'ringfold' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # help() imports all names listed here.
    absent = set() if find_spec("torch") else {"DiLoCo"}
    return sorted({*globals(), *_MODULES} - absent)
