"""The known backends: those of this package, registered ones, and entry points of other packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms._keywords import also_named
from torchcomms._python_backend import TorchCommBackend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "torchcomms.backends"

# The names of the engine: its own, and aliases that existing programs use.
ENGINE_NAMES = frozenset({"gloo", "mccl", "nccl", "ncclx", "ringfold", "xccl"})
# Aliases for devices that it was not tested with.
_UNTESTED = frozenset({"mccl", "xccl"})
FAKE = "fake"

_registered: dict[str, type[TorchCommBackend]] = {}


@also_named(backend_class="backend")
def register_backend(name: str, backend: type[TorchCommBackend]) -> None:
    """Registers a backend written in Python, a subclass of :class:`TorchCommBackend`, for ``new_comm(name, …)``."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"invalid backend name {name!r}: must be a non-empty string")
    if not (isinstance(backend, type) and issubclass(backend, TorchCommBackend)):
        raise TypeError(f"invalid backend {backend!r}: must be a subclass of TorchCommBackend")
    _registered[name] = backend


def built_backends() -> list[str]:
    """The backends of this package that are supported. All but ``fake`` are one engine.

    All-reduces and all-gathers of CUDA tensors run on the device if all ranks are on one host; everything else is staged through
    pinned host memory.

    >>> built_backends()
    ['fake', 'gloo', 'nccl', 'ncclx', 'ringfold']
    """
    return sorted({*ENGINE_NAMES, FAKE} - _UNTESTED)


@also_named(backend="name")
def is_backend_built(name: str) -> bool:
    """Whether this backend is part of this package and supported.

    >>> is_backend_built("gloo"), is_backend_built("rccl")
    (True, False)
    """
    return name in built_backends()


def _is_backend_registered(name: str) -> bool:
    """Whether ``new_comm`` finds this backend without searching other packages."""
    return name in _registered or name in ENGINE_NAMES or name == FAKE


def registered_class(name: str) -> type[TorchCommBackend] | None:
    """The Python backend of this name, if there is one. Unknown names are searched in other packages."""
    known = _registered.get(name)
    if known is None and not _is_backend_registered(name):
        _load_entry_point(name)
        known = _registered.get(name)
    return known


def unknown_backend(name: str) -> ModuleNotFoundError:
    """The error for an unknown backend."""
    names = ", ".join(sorted({*_registered, *ENGINE_NAMES, FAKE}))
    return ModuleNotFoundError(
        f"failed to find backend {name!r}: known are {names}, and no installed package has such an entry point in the group "
        f"{ENTRY_POINTS!r}",
        name=name,
    )


def _load_entry_point(name: str) -> None:
    from importlib.metadata import entry_points

    found: list[EntryPoint] = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        return
    # A module may register its backends when it is loaded.
    loaded = found[0].load()
    if name not in _registered and isinstance(loaded, type) and issubclass(loaded, TorchCommBackend):
        _registered[name] = loaded
