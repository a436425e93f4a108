"""What a run shares: tensors by name, gathered from modules, optimisers, arrays and mappings of them."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pccl
from ringfold.elastic.optimizer import optimizer_tensors, prepare_optimizer


@dataclass(frozen=True)
class Unequal:
    """Marks a part of the state whose contents may differ between peers: a newcomer receives it once, with its first
    sync, and from then on everybody keeps its own. Running statistics of batch normalisation are such a case."""

    value: Any


class State:
    """The tensors of a run, found anew at every sync: modules and optimisers may have replaced theirs since."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._places: list[tuple[object, ...]] | None = None
        self._shared: pccl.SharedState | None = None
        self.members = list(members_of(source))
        """The parts that want to be told of boundaries."""
        for optimizer in optimizers_of(source):
            prepare_optimizer(optimizer)
        self.shared()

    def shared(self) -> pccl.SharedState:
        """The state as it is to be synced now."""
        parts = list(parts_of("", self._source, False))
        if not parts:
            raise ValueError("the state of a run holds no tensor")
        places = [_place(part) for part in parts]
        if self._shared is None or places != self._places:
            name, times = Counter(part.name for part in parts).most_common(1)[0]
            if times > 1:
                raise ValueError(f"{times} tensors of the state are called {name!r}")
            self._shared = pccl.SharedState([_info(part) for part in parts])
            self._places = places
        return self._shared


@dataclass(frozen=True)
class Part:
    """One tensor of the state."""

    name: str
    tensor: Any
    unequal: bool


def parts_of(name: str, value: Any, unequal: bool) -> Iterator[Part]:
    """The tensors in a value, in an order that depends on the program alone."""
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
        for place, inner in enumerate(value):
            yield from parts_of(_join(name, str(place)), inner, unequal)
    elif torch is not None and isinstance(value, torch.nn.Module):
        for key, tensor in value.named_parameters():
            yield Part(_join(name, key), _plain(tensor.detach()), unequal)
        for key, tensor in value.named_buffers():
            yield Part(_join(name, key), _plain(tensor.detach()), unequal)
    elif torch is not None and isinstance(value, torch.optim.Optimizer):
        for key, tensor in optimizer_tensors(value):
            yield Part(_join(name, key), _plain(tensor.detach()), unequal)
    elif torch is not None and isinstance(value, torch.Tensor):
        yield Part(name or "state", _plain(value.detach()), unequal)
    elif _is_array(value):
        yield Part(name or "state", value.view("uint8") if value.dtype.kind == "b" else value, unequal)
    elif isinstance(value, bytearray | memoryview | array) or hasattr(value, "__dlpack__"):
        yield Part(name or "state", value, unequal)
    else:
        raise TypeError(
            f"{name or 'the state'} is a {type(value).__name__}; a state is made of tensors, arrays, modules, optimisers "
            "and mappings of them (a number has to live in an array of its own, so that it can be written)"
        )


def members_of(value: Any) -> Iterator[Any]:
    """The parts that take part in boundaries, DiLoCo for one."""
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


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _plain(tensor: Any) -> Any:
    """The same memory, with a type that can be sent."""
    import torch

    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor)
    if tensor.dtype == torch.bool or (tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1):
        return tensor.view(torch.uint8)
    return tensor


def _place(part: Part) -> tuple[object, ...]:
    """Where a tensor lies and what it looks like; if any of it has changed, it is described to the others anew."""
    tensor = part.tensor
    if isinstance(tensor, pccl.TensorInfo):
        return (part.name, id(tensor))
    if _is_array(tensor):
        return (part.name, tensor.__array_interface__["data"][0], tensor.shape, tensor.dtype)
    if hasattr(tensor, "data_ptr"):
        return (part.name, tensor.data_ptr(), tensor.shape, tensor.dtype)
    return (part.name, id(tensor))


def _info(part: Part) -> pccl.TensorInfo:
    if isinstance(part.tensor, pccl.TensorInfo):
        if part.unequal and not part.tensor.allow_content_inequality:
            raise ValueError(
                f"{part.name!r} is a TensorInfo: give it allow_content_inequality=True instead of Unequal"
            )
        return part.tensor
    return pccl.TensorInfo(part.name, data=part.tensor, allow_content_inequality=part.unequal)
