"""Which backends there are: ours, those that were registered, and those of other packages (entry points)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms._python_backend import TorchCommBackend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "torchcomms.backends"

# The names under which our engine serves: its own, and those that users write already.
ENGINE_NAMES = frozenset({"gloo", "mccl", "nccl", "ncclx", "ringfold", "xccl"})
# Those of them that stand for devices nobody has tried it with.
_UNTRIED = frozenset({"mccl", "xccl"})
FAKE = "fake"

_registered: dict[str, type[TorchCommBackend]] = {}


def register_backend(name: str, backend: type[TorchCommBackend]) -> None:
    """Makes ``new_comm(name, …)`` use a backend written in Python, a subclass of :class:`TorchCommBackend`."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"a backend's name is a text that is not empty, not {name!r}")
    if not (isinstance(backend, type) and issubclass(backend, TorchCommBackend)):
        raise TypeError(f"a backend is a subclass of TorchCommBackend, not {backend!r}")
    _registered[name] = backend


def built_backends() -> list[str]:
    """The backends that are part of this package and work. All but ``fake`` are one engine: ``nccl`` and ``ncclx`` stand for
    CUDA tensors. All-reduces and all-gathers of these run on the device, if all ranks are on one host; all else takes them through
    host memory.

    >>> built_backends()
    ['fake', 'gloo', 'nccl', 'ncclx', 'ringfold']
    """
    return sorted({*ENGINE_NAMES, FAKE} - _UNTRIED)


def is_backend_built(name: str) -> bool:
    """Whether this backend is part of this package and works.

    >>> is_backend_built("gloo"), is_backend_built("rccl")
    (True, False)
    """
    return name in built_backends()


def _is_backend_registered(name: str) -> bool:
    """Whether ``new_comm`` finds this backend without looking into other packages."""
    return name in _registered or name in ENGINE_NAMES or name == FAKE


def registered_class(name: str) -> type[TorchCommBackend] | None:
    """The Python backend of this name, if there is one; other packages are asked for names that nobody knows."""
    known = _registered.get(name)
    if known is None and not _is_backend_registered(name):
        _load_entry_point(name)
        known = _registered.get(name)
    return known


def unknown(name: str) -> ModuleNotFoundError:
    """What is raised for a name that stands for no backend."""
    names = ", ".join(sorted({*_registered, *ENGINE_NAMES, FAKE}))
    return ModuleNotFoundError(
        f"failed to find backend {name!r}: it is none of {names}, and no installed package offers it "
        f"as an entry point of the group {ENTRY_POINTS!r}",
        name=name,
    )


def _load_entry_point(name: str) -> None:
    from importlib.metadata import entry_points

    found: list[EntryPoint] = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        return
    # A module may register its backends as it is loaded; then nothing is left to do.
    loaded = found[0].load()
    if name not in _registered and isinstance(loaded, type) and issubclass(loaded, TorchCommBackend):
        _registered[name] = loaded
