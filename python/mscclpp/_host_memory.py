"""Memory of the host that other processes of the host can map, and arrays in it."""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import math
import mmap
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from mscclpp._errors import SysError, invalid

if TYPE_CHECKING:
    import numpy


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class RawHostBuffer:
    """So many bytes of the host's memory, zero-filled, in a file without a name: others of the host write it directly when it
    is registered for ``Transport.SharedMemory``. It lends its memory as ``buffer``, and lives as long as anything uses that.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0:
            raise ValueError(f"memory of {nbytes} bytes is none")
        try:
            self._file = os.memfd_create("mscclpp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise SysError(error.errno or 0, f"memory can't be shared: {error}") from None
        weakref.finalize(self, os.close, self._file)
        try:
            # As much as is there, now: memory that runs out later is a signal that ends the process.
            os.posix_fallocate(self._file, 0, nbytes)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self._file, nbytes)
        except OSError as error:
            raise SysError(error.errno or 0, f"{nbytes} bytes can't be shared: {error}") from None
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._map))
        _known.add(self)

    @property
    def buffer(self) -> memoryview:
        """The bytes."""
        return memoryview(self._map)

    @property
    def file(self) -> int:
        """The number of the open file."""
        return self._file

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def __len__(self) -> int:
        return self.nbytes


def HostBuffer(shape: int | tuple[int, ...], dtype: Any = float) -> numpy.ndarray[Any, Any]:  # noqa: N802
    """A zero-filled numpy array in memory that other processes of the host can map: what ``GpuBuffer`` is on a GPU.

    It is registered as any tensor is; by ``Transport.SharedMemory`` others then write it without this process's help.
    """
    lengths = dimensions(shape)
    try:
        import numpy
    except ImportError:
        raise RuntimeError(
            "HostBuffer is an array of numpy, which is not installed; RawHostBuffer needs none"
        ) from None
    kind = numpy.dtype(dtype)
    memory = RawHostBuffer(math.prod(lengths) * kind.itemsize)
    # The array keeps the memory by this attribute's owner.
    array: numpy.ndarray[Any, Any] = numpy.asarray(memory).view(kind).reshape(lengths)
    return array


def dimensions(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """The lengths of a shape, none of which may be 0 or less."""
    lengths = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for length in lengths:
        if not hasattr(length, "__index__"):
            raise ValueError(f"a shape is made of whole numbers, not of {type(length).__name__}")
        if length <= 0:
            raise ValueError(f"shape {list(lengths)} has a dimension that is not above 0")
    return tuple(int(length) for length in lengths)


class _Known:
    """The shared memories of this process, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: list[int] = []
        self._all: dict[int, weakref.ref[RawHostBuffer]] = {}

    def add(self, memory: RawHostBuffer) -> None:
        with self._lock:
            if memory.address not in self._all:
                bisect.insort(self._addresses, memory.address)
            self._all[memory.address] = weakref.ref(memory)

    def find(self, address: int) -> RawHostBuffer | None:
        """The one that begins at an address or before, and lives."""
        with self._lock:
            at = bisect.bisect_right(self._addresses, address) - 1
            while at >= 0:
                begin = self._addresses[at]
                memory = self._all[begin]()
                if memory is not None:
                    return memory
                # Gone: forgotten here, so that nothing has to be done where objects end.
                del self._all[begin], self._addresses[at]
                at -= 1
        return None


_known = _Known()


def file_of(address: int, nbytes: int) -> tuple[tuple[int, int] | None, object]:
    """The file and the offset in it where some bytes lie, if they lie in memory that was made here; and what keeps them."""
    memory = _known.find(address)
    if memory is None or address + nbytes > memory.address + memory.nbytes:
        if memory is not None and address < memory.address + memory.nbytes:
            raise invalid(
                f"{nbytes} bytes at {address:#x} reach beyond the {memory.nbytes} bytes of a shared memory"
            )
        return None, None
    return (memory.file, address - memory.address), memory


__all__ = ["HostBuffer", "RawHostBuffer"]
