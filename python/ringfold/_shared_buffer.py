"""Arrays in memory that the other ranks of the host read in place."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from ringfold._native import SharedBuffer

if TYPE_CHECKING:
    import numpy

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]


def empty(shape: Shape, dtype: Any = float) -> numpy.ndarray[Any, Any]:
    """A numpy array of zeros that the other ranks of the host read in place.

    Large all-reduces and reduce-scatters of a group on one host are faster if the arrays of all ranks were made by this
    function: each rank reads those of the others where they lie, instead of copies. All other uses are as with any array.

    The array takes shared memory and a file descriptor. Both are freed with the array and its views. Views, also those of
    ``torch.from_numpy``, are read in place, too; copies and unpickled arrays are ordinary ones. A forked child shares the
    memory with its parent, so that each sees what the other writes.

    ``ringfold.torch.empty`` makes tensors.

    Raises ``MemoryError`` if there is not enough memory, ``ValueError`` for an invalid shape.
    """
    try:
        import numpy
    except ImportError:
        raise ImportError(
            "ringfold.empty needs numpy, which is not installed: install it, or use ringfold.torch.empty"
        ) from None
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise ValueError(f"invalid dtype {kind}: Python objects cannot lie in shared memory")
    lengths = dimensions(shape)
    memory = allocate(lengths, kind.itemsize)
    if memory is None:
        return numpy.empty(lengths, kind)
    # The array keeps the memory.
    array: numpy.ndarray[Any, Any] = numpy.frombuffer(memoryview(memory), kind).reshape(lengths)
    return array


def allocate(lengths: tuple[int, ...], itemsize: int) -> ctypes.Array[ctypes.c_ubyte] | None:
    """The memory of an array. None if it has no elements."""
    nbytes = math.prod(lengths) * itemsize
    if nbytes == 0:
        return None
    if nbytes > sys.maxsize:
        raise MemoryError(f"invalid shape {list(lengths)}: {nbytes} bytes are more than any machine has")
    buffer = SharedBuffer(nbytes)
    memory = (ctypes.c_ubyte * nbytes).from_address(buffer.address)
    # The buffer lives as long as this object, which arrays and storages keep.
    memory.buffer = buffer  # type: ignore[attr-defined]
    return memory


def dimensions(shape: Shape) -> tuple[int, ...]:
    """The dimensions of a shape."""
    given = (shape,) if isinstance(shape, SupportsIndex) else tuple(shape)
    if not all(isinstance(length, SupportsIndex) for length in given):
        raise ValueError(f"invalid shape {shape!r}: must be whole numbers")
    lengths = tuple(length.__index__() for length in given)
    if any(length < 0 for length in lengths):
        raise ValueError(f"invalid shape {list(lengths)}: a dimension is negative")
    return lengths
