"""Parameters of kernels as bytes."""

from __future__ import annotations

import ctypes
from typing import Any


def pack(*args: Any) -> bytes:
    """The raw parameter buffer of a kernel: whole numbers and bools are 4 bytes, a ``ctypes.c_size_t`` is 8, an array of cupy,
    torch or numpy is its address, and bytes are taken as they are. Anything else is a ``RuntimeError``.

    Nothing is put between them: what has 8 bytes has to come at a multiple of 8.

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
                f"argument {index} is {arg}, which 4 bytes can't hold: ctypes.c_size_t is for larger ones"
            )
        return (arg & 0xFFFF_FFFF).to_bytes(4, "little")
    if isinstance(arg, ctypes.c_size_t):
        return arg.value.to_bytes(8, "little")
    address = _address(arg)
    if address is None:
        raise RuntimeError(f"argument {index} is of type {type(arg).__name__}, which can't be packed")
    return address.to_bytes(8, "little")


def _address(array: Any) -> int | None:
    """Where an array begins, be it contiguous or not."""
    if hasattr(type(array), "data_ptr"):
        return int(array.data_ptr())
    described = getattr(array, "__cuda_array_interface__", None)
    # Numbers of numpy describe themselves as arrays do, but are somewhere else each time.
    if described is None and (hasattr(array, "ctypes") or not hasattr(array, "dtype")):
        described = getattr(array, "__array_interface__", None)
    return None if described is None else int(described["data"][0] or 0)
