"""The memory of tensors of cupy, torch and numpy, and of objects with the buffer protocol."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from mscclpp._errors import Error, invalid


class Span(NamedTuple):
    """Bytes in memory, and the object that keeps them alive."""

    address: int
    nbytes: int
    keep: object
    is_device: bool = False


def span_of(tensor: Any, name: str = "tensor") -> Span:
    """The memory of a contiguous tensor."""
    if isinstance(tensor, Span):
        return tensor
    # torch first: its tensors have the other interfaces, too, which raise for some of them.
    if hasattr(type(tensor), "data_ptr"):
        if not tensor.is_contiguous():
            raise _not_contiguous(name, tensor.shape, tensor.stride())
        return Span(
            int(tensor.data_ptr()), int(tensor.nbytes), tensor, bool(getattr(tensor, "is_cuda", False))
        )
    for interface, is_device in (("__cuda_array_interface__", True), ("__array_interface__", False)):
        described = getattr(tensor, interface, None)
        if described is not None:
            return _from_interface(described, name, tensor, is_device)
    address, nbytes = getattr(tensor, "address", None), getattr(tensor, "nbytes", None)
    if isinstance(address, int) and isinstance(nbytes, int):
        return Span(address, nbytes, tensor)
    return _from_buffer(tensor, name)


def _from_interface(described: dict[str, Any], name: str, tensor: object, is_device: bool) -> Span:
    shape = tuple(int(length) for length in described["shape"])
    item = int(described["typestr"][2:])
    strides = described.get("strides")
    nbytes = item
    for length in shape:
        nbytes *= length
    if strides is not None and nbytes:
        expected = item
        for length, stride in zip(reversed(shape), reversed(strides)):
            if length != 1 and int(stride) != expected:
                raise _not_contiguous(name, shape, strides)
            expected *= length
    return Span(int(described["data"][0] or 0), nbytes, tensor, is_device)


def _from_buffer(tensor: object, name: str) -> Span:
    try:
        view = memoryview(tensor)  # type: ignore[arg-type]
    except TypeError:
        raise invalid(
            f"invalid {name}: must be a tensor of cupy, torch or numpy, or have the buffer protocol, not {type(tensor).__name__}"
        ) from None
    if not view.c_contiguous:
        raise _not_contiguous(name, view.shape, view.strides)
    if not view.nbytes:
        return Span(0, 0, tensor)
    if view.readonly:
        # ctypes does not give its address; a copy is as good for reading.
        copy = ctypes.create_string_buffer(view.tobytes(), view.nbytes)
        return Span(ctypes.addressof(copy), view.nbytes, copy)
    lent = (ctypes.c_ubyte * view.nbytes).from_buffer(view.cast("B"))
    return Span(ctypes.addressof(lent), view.nbytes, lent)


def writable_span_of(tensor: Any, name: str = "tensor") -> Span:
    """The memory of a contiguous tensor that is writable."""
    described = (
        getattr(tensor, "__array_interface__", None) if not hasattr(type(tensor), "data_ptr") else None
    )
    is_readonly = bool(described["data"][1]) if described is not None else isinstance(tensor, bytes)
    if isinstance(tensor, memoryview):
        is_readonly = tensor.readonly
    if is_readonly:
        raise invalid(f"invalid {name}: it is read-only, but must be writable")
    return span_of(tensor, name)


def _not_contiguous(name: str, shape: Any, strides: Any) -> Error:
    return invalid(
        f"{name} of shape {list(shape or ())} is not contiguous: its strides are {list(strides or ())}"
    )
