"""GPU memory, with and without cupy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mscclpp._errors import CudaError, engine_errors
from mscclpp._host_memory import dimensions
from ringfold import _native

if TYPE_CHECKING:
    from typing import TypeAlias

_made: list[type] = []


class RawGpuBuffer:
    """Zeroed memory of the current GPU. Frameworks use it through DLPack as bytes, without a copy:
    ``torch.from_dlpack(RawGpuBuffer(n)).view(torch.float32)``.
    """

    def __init__(self, nbytes: int, device: int | None = None) -> None:
        if nbytes <= 0:
            raise ValueError(f"invalid size: {nbytes} bytes; must be > 0")
        self._native = gpu_memory(nbytes, device)

    def nbytes(self) -> int:
        """Its size in bytes."""
        return self._native.nbytes

    def data(self) -> int:
        """Its address."""
        return self._native.address

    def device_id(self) -> int:
        """Its GPU."""
        return self._native.ordinal

    def to_dlpack(self) -> Any:
        """A DLPack capsule."""
        return self.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._native.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._native.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._native.__cuda_array_interface__


def gpu_memory(nbytes: int, device: int | None) -> _native.CudaMemory:
    """Allocates memory of a GPU; :class:`CudaError` if there is none."""
    with engine_errors():
        why = _native.cuda_unavailable_reason()
        if why is not None:
            raise CudaError(0, f"no GPU available: {why}")
        return _native.CudaMemory(nbytes, _native.cuda_current() if device is None else device)


class NoGpuBuffer:
    """A zeroed array of cupy. Cupy is not installed, so the constructor raises; :class:`mscclpp.RawGpuBuffer` does not need it."""

    def __init__(
        self, shape: int | tuple[int, ...], dtype: Any = float, strides: Any = None, order: str = "C"
    ) -> None:
        dimensions(shape)
        raise RuntimeError(
            "GpuBuffer needs cupy, which is not installed: pip install cupy-cuda13x, or use RawGpuBuffer"
        )


if TYPE_CHECKING:
    GpuBuffer: TypeAlias = Any


def gpu_buffer_class() -> type:
    """The class ``GpuBuffer``, defined on first use because it imports cupy."""
    if not _made:
        try:
            import cupy  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            _made.append(NoGpuBuffer)
        else:
            _made.append(_derived(cupy))
        _made[0].__name__ = _made[0].__qualname__ = "GpuBuffer"
        _made[0].__module__ = "mscclpp"
    return _made[0]


def _derived(cupy: Any) -> type:
    class GpuBuffer(cupy.ndarray):  # type: ignore[misc, unused-ignore]
        """A zeroed array of cupy in its own allocation, which other processes can open."""

        def __new__(
            cls, shape: int | tuple[int, ...], dtype: Any = float, strides: Any = None, order: str = "C"
        ) -> Any:
            lengths = dimensions(shape)
            nbytes = math.prod(lengths) * cupy.dtype(dtype).itemsize
            if strides is not None:
                # Up to the end of the last element.
                nbytes = sum((n - 1) * abs(s) for n, s in zip(lengths, strides)) + cupy.dtype(dtype).itemsize
            device = cupy.cuda.runtime.getDevice()
            memory = gpu_memory(nbytes, device)
            unowned = cupy.cuda.UnownedMemory(memory.address, memory.nbytes, memory, device)
            pointer = cupy.cuda.MemoryPointer(unowned, 0)
            return super().__new__(cls, lengths, dtype=dtype, memptr=pointer, strides=strides, order=order)

    return GpuBuffer
