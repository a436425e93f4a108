"""Collectives on GPUs of one host, on streams."""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from typing import TYPE_CHECKING, Any

from mscclpp._cache import cache_folder
from mscclpp._errors import CudaError, Error, ErrorCode, invalid, told
from mscclpp._kernel import stream_number
from mscclpp._span import Span, span_of
from ringfold import _native

if TYPE_CHECKING:
    from mscclpp.comm import CommGroup

# The numbers of the engine's element types, by the names that cupy and torch have for them.
_DTYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "uint16": 3,
    "uint32": 4,
    "int32": 5,
    "uint64": 6,
    "int64": 7,
    "float16": 8,
    "bfloat16": 9,
    "float32": 10,
    "float64": 11,
}
# How long the end of the process waits for what was queued.
_EXIT_SECONDS = 5.0
_REDUCTIONS = {"SUM": 0, "AVG": 1, "PRODUCT": 2, "MAX": 3, "MIN": 4}


class Collectives:
    """All-reduce and all-gather between the GPUs of one host, several ranks on one GPU included.

        collectives = group.collectives()                    # all ranks
        collectives.all_reduce(tensor, stream=stream)
        collectives.all_gather(parts, part, stream=stream)

    An operation is queued on the stream and returns; it may be captured in a graph. All ranks call the same in the same order. If
    a rank dies, what was queued ends, and :meth:`failure` and every later call say why.
    """

    def __init__(self, group: CommGroup, device: int | None = None) -> None:
        with told():
            why = _native.cuda_why_not()
            # Ranks without a GPU join in, so that all are told.
            ordinal = -1 if why is not None else _native.cuda_current() if device is None else device
            try:
                native = _native.DeviceGroup.open(group.bootstrap.native, ordinal, None, str(cache_folder()))
            except Exception as error:
                if why is not None:
                    raise CudaError(0, f"collectives on GPUs can't be used: {why}") from error
                raise
        self._native = native
        _open.add(self)
        # The engine's group lives as long as its bootstrap.
        self._group = group

    def all_reduce(self, tensor: Any, output: Any = None, op: str = "SUM", stream: Any = None) -> None:
        """Reduces the tensors of all ranks, in place or into ``output``: by ``SUM``, ``AVG``, ``PRODUCT``, ``MAX`` or ``MIN``."""
        source, dtype, item = _tensor(tensor, "tensor")
        target = source
        if output is not None:
            target, other, _ = _tensor(output, "output")
            if other != dtype or target.nbytes != source.nbytes:
                raise invalid("tensor and output differ in type or size")
        name = str(getattr(op, "name", op)).upper()
        if name not in _REDUCTIONS:
            raise invalid(f"{op!r} is no reduction: {', '.join(_REDUCTIONS)} are")
        with told():
            self._native.all_reduce(
                source.address,
                target.address,
                source.nbytes // item,
                dtype,
                _REDUCTIONS[name],
                stream_number(stream),
            )

    def all_gather(self, output: Any, tensor: Any, stream: Any = None) -> None:
        """Puts the tensors of all ranks one after the other into ``output``."""
        source, dtype, item = _tensor(tensor, "tensor")
        target, other, _ = _tensor(output, "output")
        if other != dtype or target.nbytes != source.nbytes * self._group.nranks:
            raise invalid(
                f"output has to be of the tensor's type, and as large as {self._group.nranks} of them"
            )
        with told():
            self._native.all_gather(
                source.address, target.address, source.nbytes // item, dtype, stream_number(stream)
            )

    def register(self, tensor: Any) -> None:
        """Has a tensor read and written where it is, without a copy. All ranks register theirs together."""
        where = _device_span(tensor, "tensor")
        with told():
            self._native.register(where.address, where.nbytes, where.keep)

    def failure(self) -> str | None:
        """Why nothing goes on any more, if it does not."""
        error = self._native.failure()
        return None if error is None else str(error)

    def check(self) -> None:
        """Raises if nothing goes on any more."""
        why = self.failure()
        if why is not None:
            raise Error(ErrorCode.Aborted, why)

    def abort(self) -> None:
        """Gives up, for all ranks."""
        with told():
            self._native.abort()

    def close(self) -> None:
        """Lets go of the GPU's memory."""
        _open.discard(self)
        self._native.close()


# Those that are not closed.
_open: weakref.WeakSet[Collectives] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    """A process that ends takes its kernels with it, and those of other ranks would wait for them in vain."""
    until = time.monotonic() + _EXIT_SECONDS
    for collectives in list(_open):
        with contextlib.suppress(Exception):
            collectives._native.settle(max(until - time.monotonic(), 0.0))


def _device_span(tensor: Any, name: str) -> Span:
    where = span_of(tensor, name)
    if not where.is_device:
        raise invalid(f"{name} is not on a GPU")
    return where


def _tensor(tensor: Any, name: str) -> tuple[Span, int, int]:
    """Where a tensor is, the engine's number of its type, and how many bytes an element has."""
    where = _device_span(tensor, name)
    kind = str(getattr(tensor, "dtype", "uint8")).rpartition(".")[2]
    if kind not in _DTYPES:
        raise invalid(f"{name} has elements of type {kind}, which collectives on GPUs do not take")
    item = getattr(tensor, "itemsize", None)
    return where, _DTYPES[kind], int(item) if isinstance(item, int) else 1
