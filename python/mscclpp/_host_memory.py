"""Host memory that other processes of the host can map, and arrays in it."""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

from mscclpp._errors import SysError, invalid

if TYPE_CHECKING:
    import numpy


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class RawHostBuffer:
    """Zeroed host memory in an anonymous file: processes of the host write it directly by ``Transport.SharedMemory``.

    It lives as long as ``buffer`` or an array uses it.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0:
            raise ValueError(f"invalid size: {nbytes} bytes; must be > 0")
        try:
            self._file = os.memfd_create("mscclpp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise SysError(error.errno or 0, f"creating shared memory failed: {error}") from None
        weakref.finalize(self, os.close, self._file)
        try:
            # Allocated now: a write without free memory later would kill the process.
            os.posix_fallocate(self._file, 0, nbytes)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self._file, nbytes)
        except OSError as error:
            raise SysError(
                error.errno or 0, f"allocating {nbytes} bytes of shared memory failed: {error}"
            ) from None
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._map))
        _buffers.add(self)

    @property
    def buffer(self) -> memoryview:
        """The bytes."""
        return memoryview(self._map)

    @property
    def file(self) -> int:
        """The file descriptor."""
        return self._file

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def __len__(self) -> int:
        return self.nbytes


def HostBuffer(shape: int | tuple[int, ...], dtype: Any = float) -> numpy.ndarray[Any, Any]:  # noqa: N802
    """A zeroed numpy array in shared memory of the host, as ``GpuBuffer`` is on a GPU.

    It is registered like any tensor; by ``Transport.SharedMemory`` other ranks write it directly.
    """
    lengths = dimensions(shape)
    try:
        import numpy
    except ImportError:
        raise RuntimeError(
            "HostBuffer needs numpy, which is not installed: install it, or use RawHostBuffer"
        ) from None
    kind = numpy.dtype(dtype)
    memory = RawHostBuffer(math.prod(lengths) * kind.itemsize)
    # The array keeps `memory` alive.
    array: numpy.ndarray[Any, Any] = numpy.asarray(memory).view(kind).reshape(lengths)
    return array


def dimensions(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions of a shape, all of which must be > 0."""
    lengths = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for length in lengths:
        if not hasattr(length, "__index__"):
            raise ValueError(f"invalid shape: must be whole numbers, not {type(length).__name__}")
        if length <= 0:
            raise ValueError(f"invalid shape {list(lengths)}: a dimension is not above 0")
    return tuple(int(length) for length in lengths)


# The host buffers of this process.
_buffers: weakref.WeakSet[RawHostBuffer] = weakref.WeakSet()


def file_of(address: int, nbytes: int) -> tuple[tuple[int, int] | None, object]:
    """The file descriptor and offset of bytes in a host buffer, and the buffer; None otherwise."""
    for memory in list(_buffers):
        if memory.address <= address < memory.address + memory.nbytes:
            if address + nbytes > memory.address + memory.nbytes:
                raise invalid(
                    f"invalid memory: {nbytes} bytes at {address:#x} reach beyond a host buffer of {memory.nbytes} bytes"
                )
            return (memory.file, address - memory.address), memory
    return None, None


__all__ = ["HostBuffer", "RawHostBuffer"]
