"""Kernel parameters as bytes."""

from __future__ import annotations

import ctypes
from typing import Any


def pack(*args: Any) -> bytes:
    """The parameter buffer of a kernel: an int or bool is 4 bytes, a ``ctypes.c_size_t`` 8 bytes, an array of cupy, torch or numpy
    its address; bytes are copied. Other types raise ``RuntimeError``.

    There is no padding: 8-byte parameters have to come at a multiple of 8.

    >>> pack(1, True, ctypes.c_size_t(2), b"ab").hex()
    '010000000100000002000000000000006162'
    """
    return b"".join(_packed(index, arg) for index, arg in enumerate(args))


def _packed(index: int, arg: Any) -> bytes:
    if isinstance(arg, (bytes, bytearray)):
        return bytes(arg)
    if isinstance(arg, int):
        if not -(1 << 31) <= arg < 1 << 32:
            raise RuntimeError(
                f"invalid argument {index}: {arg} does not fit into 4 bytes; use ctypes.c_size_t"
            )
        return (arg & 0xFFFF_FFFF).to_bytes(4, "little")
    if isinstance(arg, ctypes.c_size_t):
        return arg.value.to_bytes(8, "little")
    address = _address(arg)
    if address is None:
        raise RuntimeError(f"unsupported type {type(arg).__name__} of argument {index}")
    return address.to_bytes(8, "little")


def _address(array: Any) -> int | None:
    """The address of an array, contiguous or not."""
    if hasattr(type(array), "data_ptr"):
        return int(array.data_ptr())
    described = getattr(array, "__cuda_array_interface__", None)
    # Scalars of numpy have the interface too, but with a temporary address.
    if described is None and (hasattr(array, "ctypes") or not hasattr(array, "dtype")):
        described = getattr(array, "__array_interface__", None)
    return None if described is None else int(described["data"][0] or 0)
