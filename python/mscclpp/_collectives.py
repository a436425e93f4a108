"""Collectives on GPUs of one host, on streams."""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any

from mscclpp._cache import cache_folder
from mscclpp._errors import CudaError, Error, ErrorCode, engine_errors, invalid
from mscclpp._kernel import stream_handle
from mscclpp._span import Span, span_of
from ringfold import _native

if TYPE_CHECKING:
    from mscclpp.comm import CommGroup

# The names of the engine's element types in cupy and torch, by number.
_DTYPES = (
    *("uint8", "int8", "int16", "uint16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
# How long process exit waits for queued kernels.
_EXIT_SECONDS = 5.0
# The engine's reductions, by number.
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MAX", "MIN")


class Collectives:
    """All-reduce and all-gather between the GPUs of one host, several ranks on one GPU included.

        collectives = group.collectives()                    # all ranks
        collectives.all_reduce(tensor, stream=stream)
        collectives.all_gather(parts, part, stream=stream)

    Operations are queued on the stream and may be captured in a graph. All ranks make the same calls in the same order. If a rank
    dies, queued operations end, and :meth:`failure` and every later call tell why.
    """

    def __init__(self, group: CommGroup, device: int | None = None) -> None:
        with engine_errors():
            why = _native.cuda_unavailable_reason()
            # Ranks without a GPU take part, so that all ranks get the error.
            ordinal = -1 if why is not None else _native.cuda_current() if device is None else device
            try:
                native = _native.DeviceGroup.open(group.bootstrap.native, ordinal, None, str(cache_folder()))
            except Exception as error:
                if why is not None:
                    raise CudaError(0, f"no collectives on GPUs: {why}") from error
                raise
        self._native = native
        _open.add(self)
        # The engine's group lives as long as its bootstrap.
        self._group = group

    def all_reduce(self, tensor: Any, output: Any = None, op: str = "SUM", stream: Any = None) -> None:
        """Reduces the tensors of all ranks, in place or into ``output``; ``op``: ``SUM``, ``AVG``, ``PRODUCT``, ``MAX`` or ``MIN``."""
        source, dtype, item = _tensor(tensor, "tensor")
        target = source
        if output is not None:
            target, other, _ = _tensor(output, "output")
            if other != dtype or target.nbytes != source.nbytes:
                raise invalid("tensor and output differ in type or size")
        name = str(getattr(op, "name", op)).upper()
        if name not in _REDUCTIONS:
            raise invalid(f"unknown reduction {op!r}: must be one of {', '.join(_REDUCTIONS)}")
        with engine_errors():
            self._native.all_reduce(
                source.address,
                target.address,
                source.nbytes // item,
                dtype,
                _REDUCTIONS.index(name),
                None,
                stream_handle(stream),
                None,
            )

    def all_gather(self, output: Any, tensor: Any, stream: Any = None) -> None:
        """Gathers the tensors of all ranks, concatenated in ``output``."""
        source, dtype, _ = _tensor(tensor, "tensor")
        target, other, _ = _tensor(output, "output")
        if other != dtype or target.nbytes != source.nbytes * self._group.nranks:
            raise invalid(
                f"invalid output: must have the tensor's type and {self._group.nranks} times its size"
            )
        with engine_errors():
            inputs, outputs = [(source.address, source.nbytes)], [(target.address, target.nbytes)]
            self._native.run(
                "all_gather", dtype, 0, -1, None, None, inputs, outputs, None, stream_handle(stream), None
            )

    def register(self, tensor: Any) -> None:
        """Registers the memory of a tensor, which is then read and written in place, with the first operation on it.

        Memory that operations use is registered by itself, from the second operation on.
        """
        where = _device_span(tensor, "tensor")
        with engine_errors():
            self._native.register(where.address, where.nbytes)

    def deregister(self, tensor: Any) -> None:
        """Makes the other ranks close the memory of a tensor, unless a CUDA graph uses it."""
        where = _device_span(tensor, "tensor")
        with engine_errors():
            self._native.deregister(where.address, where.nbytes)

    def failure(self) -> str | None:
        """Why the collectives failed; None while they work."""
        error = self._native.failure()
        return None if error is None else str(error)

    def check(self) -> None:
        """Raises if the collectives have failed."""
        why = self.failure()
        if why is not None:
            raise Error(ErrorCode.Aborted, why)

    def abort(self) -> None:
        """Aborts on all ranks."""
        with engine_errors():
            self._native.abort()

    def close(self) -> None:
        """Frees the GPU's memory."""
        _open.discard(self)
        self._native.close()


# The objects that are not closed.
_open: weakref.WeakSet[Collectives] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    """Waits for queued kernels: those of other ranks wait for them."""
    deadline = time.monotonic() + _EXIT_SECONDS
    for collectives in list(_open):
        with contextlib.suppress(Exception):
            collectives._native.synchronize(max(deadline - time.monotonic(), 0.0))


def _device_span(tensor: Any, name: str) -> Span:
    where = span_of(tensor, name)
    if not where.is_device:
        raise invalid(f"{name} is not on a GPU")
    return where


def _tensor(tensor: Any, name: str) -> tuple[Span, int, int]:
    """The memory of a tensor, the engine's number of its type, and the size of an element."""
    where = _device_span(tensor, name)
    kind = str(getattr(tensor, "dtype", "uint8")).rpartition(".")[2]
    if kind not in _DTYPES:
        raise invalid(f"unsupported element type {kind} of {name}")
    item = getattr(tensor, "itemsize", None)
    return where, _DTYPES.index(kind), int(item) if isinstance(item, int) else 1
