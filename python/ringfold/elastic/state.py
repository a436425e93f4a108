"""The shared state of a run: named tensors of modules, optimisers, arrays and mappings of them."""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pccl
from ringfold.elastic.optimizer import optimizer_tensors, prepare_optimizer

logger = logging.getLogger("ringfold")


@dataclass(frozen=True)
class Unequal:
    """Marks a part of the state whose contents may differ between peers, such as statistics of batch normalisation. A new
    peer receives it at its first sync; then each peer has its own."""

    value: Any


class State:
    """The tensors of a run. They are collected at every sync: modules and optimisers may have replaced theirs."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._layouts: list[tuple[object, ...]] | None = None
        self._shared: pccl.SharedState | None = None
        self._held: dict[str, Any] = {}
        self.members = list(members_of(source))
        """The parts that are called at boundaries."""
        for optimizer in optimizers_of(source):
            prepare_optimizer(optimizer)
        self.shared()

    def parts(self) -> list[Part]:
        """The current tensors."""
        return list(parts_of("", self._source, False))

    def shared(self) -> pccl.SharedState:
        """The current state for a sync."""
        parts = self.parts()
        if not parts:
            raise ValueError("invalid state: it contains no tensor")
        for name, tensor in _held_by("", self._source):
            held = self._held.setdefault(name, tensor)
            if held is not None and held is not tensor:
                self._held[name] = None
                logger.warning(
                    "state %r is another tensor than before: it is shared from now on, and variables with the old one are not. Change "
                    "tensors in place, as `weights -= step` does",
                    name,
                )
        layouts = [_layout(part) for part in parts]
        if self._shared is None or layouts != self._layouts:
            self._shared = pccl.SharedState([_info(part) for part in parts])
            self._layouts = layouts
        return self._shared

    def expected_and_actual(self, rejection: str) -> str:
        """What the run has and what this peer has, where a rejection says that they differ."""
        expected = rejection.rpartition('at key "')[2].rstrip('"')
        keys = [part.key for part in self.parts()]
        if expected in keys:
            return f"{expected} is not at this place of the run's state"
        name = expected.rpartition(" ")[0]
        actual = next((key for key in keys if key.rpartition(" ")[0] == name), "no such tensor")
        return f"expected {expected}, but this peer has {actual}"


@dataclass(frozen=True)
class Part:
    """A tensor of the state."""

    name: str
    tensor: Any
    unequal: bool
    layout: str = ""
    """Its type and shape, if it has one: a part of what has to be equal."""

    @property
    def key(self) -> str:
        """The name in the run."""
        return f"{self.name} {self.layout}" if self.layout else self.name


def parts_of(name: str, value: Any, unequal: bool) -> Iterator[Part]:
    """The tensors in a value, in a deterministic order."""
    torch = sys.modules.get("torch")
    if isinstance(value, Unequal):
        yield from parts_of(name, value.value, True)
    elif isinstance(value, pccl.TensorInfo):
        yield Part(value.name, value, unequal)
    elif callable(getattr(value, "shared_state", None)):
        yield from parts_of(name, value.shared_state(), unequal)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from parts_of(_join(name, str(key)), inner, unequal)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from parts_of(_join(name, str(index)), inner, unequal)
    elif torch is not None and isinstance(value, torch.nn.Module):
        for key, tensor in value.named_parameters():
            yield _part(_join(name, key), tensor, unequal)
        for key, tensor in value.named_buffers():
            yield _part(_join(name, key), tensor, unequal)
    elif torch is not None and isinstance(value, torch.optim.Optimizer):
        for key, tensor in optimizer_tensors(value):
            yield _part(_join(name, key), tensor, unequal)
    elif torch is not None and isinstance(value, torch.Tensor):
        yield _part(name or "state", value, unequal)
    elif _is_array(value):
        plain = value.view("uint8") if value.dtype.kind == "b" else value
        yield Part(name or "state", plain, unequal, layout_of(value))
    elif isinstance(value, bytearray | memoryview | array) or hasattr(value, "__dlpack__"):
        yield Part(name or "state", value, unequal)
    else:
        raise TypeError(
            f"unsupported type {type(value).__name__} of {name or 'the state'}: must be a tensor, array, module, optimiser "
            "or a mapping of them (put a number into an array, so that it can be written)"
        )


def members_of(value: Any) -> Iterator[Any]:
    """The parts that are called at boundaries, such as DiLoCo."""
    if callable(getattr(value, "shared_state", None)):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from members_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from members_of(inner)


def optimizers_of(value: Any) -> Iterator[Any]:
    """The optimisers in a state."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, Unequal):
        yield from optimizers_of(value.value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from optimizers_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from optimizers_of(inner)


def layout_of(tensor: Any) -> str:
    """The type and shape of a tensor or array."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}".replace(" ", "")


def _part(name: str, tensor: Any, unequal: bool) -> Part:
    return Part(name, _plain(tensor.detach()), unequal, layout_of(tensor))


def _held_by(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that mappings hold themselves."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _held_by(_join(name, str(key)), inner)
    elif hasattr(value, "dtype"):
        yield name, value


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _plain(tensor: Any) -> Any:
    """The same memory with a supported type; of a distributed tensor the part of this rank."""
    import torch

    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor)
    if tensor.dtype == torch.bool or (tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1):
        return tensor.view(torch.uint8)
    return tensor


def _layout(part: Part) -> tuple[object, ...]:
    """The address, shape and type of a tensor, to detect changes."""
    tensor = part.tensor
    if isinstance(tensor, pccl.TensorInfo):
        return (part.name, id(tensor))
    if _is_array(tensor):
        return (part.key, tensor.__array_interface__["data"][0], tensor.shape, tensor.dtype)
    if hasattr(tensor, "data_ptr"):
        return (part.key, tensor.data_ptr(), tensor.shape, tensor.dtype)
    return (part.name, id(tensor))


def _info(part: Part) -> pccl.TensorInfo:
    if isinstance(part.tensor, pccl.TensorInfo):
        if part.unequal and not part.tensor.allow_content_inequality:
            raise ValueError(
                f"invalid state {part.name!r}: use allow_content_inequality=True instead of Unequal for a TensorInfo"
            )
        return part.tensor
    return pccl.TensorInfo(part.key, data=part.tensor, allow_content_inequality=part.unequal)
