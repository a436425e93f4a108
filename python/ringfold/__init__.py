"""Ringfold: training that goes on when machines come and go.

``ringfold.Run`` is an elastic training loop: it joins a run, lets newcomers in, keeps the state of all peers equal bit
for bit, averages gradients, and goes on when a peer dies. ``ringfold.DiLoCo`` wraps a PyTorch model and an outer
optimiser, for peers that can talk only now and then. Both stand on the package ``pccl``, whose plain calls may be used
beside them.

    >>> import ringfold
    >>> ringfold.__version__.count(".")
    2

A run needs a master, which peers meet at. Start one with ``ringfold master`` (or ``pccl_master``) on a machine that all
can reach, and see ``ringfold demo`` for a run that survives the loss of a peer.

Neither numpy nor torch is imported until something needs it; either alone is enough.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ringfold._native import __version__

if TYPE_CHECKING:
    from ringfold.diloco import DiLoCo
    from ringfold.elastic import Run

__all__ = ["DiLoCo", "Run", "__version__"]

# Where the lazy names live: DiLoCo needs torch, which takes seconds to import, and not everybody has it.
_HOMES = {"DiLoCo": "ringfold.diloco", "Run": "ringfold.elastic"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ringfold' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # help() gets all that is listed here, so what can't be had is not.
    absent = set() if find_spec("torch") else {"DiLoCo"}
    return sorted({*globals(), *_HOMES} - absent)
