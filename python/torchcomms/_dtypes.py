"""The engine's numbers of torch's element types and reductions. Needs torch, so it is imported with the first communicator."""

from __future__ import annotations

import torch

from torchcomms._reduce_op import RedOpType

U8 = 0
SUM = 0

# The engine's element types, by number.
_DTYPES = (
    *(
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.uint16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
    ),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
)
_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
# The numbers of the engine's reductions. PREMUL_SUM multiplies before, and is a sum for the engine.
_AVG, _PRODUCT, _MAX, _MIN, _AND, _OR, _XOR = 1, 2, 3, 4, 6, 7, 8
_REDUCTIONS = {
    RedOpType.SUM: SUM,
    RedOpType.AVG: _AVG,
    RedOpType.PRODUCT: _PRODUCT,
    RedOpType.MAX: _MAX,
    RedOpType.MIN: _MIN,
    RedOpType.PREMUL_SUM: SUM,
    RedOpType.BAND: _AND,
    RedOpType.BOR: _OR,
    RedOpType.BXOR: _XOR,
}
_BITWISE = frozenset({RedOpType.BAND, RedOpType.BOR, RedOpType.BXOR})
_OF_COMPLEX = frozenset({RedOpType.SUM, RedOpType.AVG, RedOpType.PREMUL_SUM})
# Booleans are bytes of 0 or 1.
_OF_BOOL = {
    RedOpType.SUM: _OR,
    RedOpType.BOR: _OR,
    RedOpType.MAX: _OR,
    RedOpType.PRODUCT: _AND,
    RedOpType.BAND: _AND,
    RedOpType.MIN: _AND,
    RedOpType.AVG: _AND,
    RedOpType.BXOR: _XOR,
}


# The engine's type for elements that are moved. All others are moved as bytes.
MOVED: dict[torch.dtype, int] = {**_NUMBERS, torch.bool: U8}


def _reduced(dtype: torch.dtype, op: RedOpType) -> tuple[int, int] | None:
    if dtype is torch.bool:
        return (U8, _OF_BOOL[op]) if op in _OF_BOOL else None
    if dtype not in _NUMBERS:
        return None
    if dtype.is_complex:
        # As pairs of real numbers: the engine does not average complex ones.
        real = torch.float32 if dtype is torch.complex64 else torch.float64
        return (_NUMBERS[real], _REDUCTIONS[op]) if op in _OF_COMPLEX else None
    if dtype.is_floating_point and op in _BITWISE:
        return None
    return _NUMBERS[dtype], _REDUCTIONS[op]


# The engine's type and reduction for elements that are reduced, for all supported pairs.
REDUCED: dict[tuple[torch.dtype, RedOpType], tuple[int, int]] = {
    (dtype, op): numbers
    for dtype in (*_NUMBERS, torch.bool)
    for op in RedOpType
    if (numbers := _reduced(dtype, op)) is not None
}


def not_reduced(dtype: torch.dtype, op: RedOpType) -> RuntimeError:
    """The error for a pair that is not in :data:`REDUCED`."""
    name, why = str(dtype).removeprefix("torch."), ""
    if op in _BITWISE and dtype.is_floating_point and dtype in _NUMBERS:
        why = ": it is a bitwise reduction"
    elif dtype.is_complex and dtype in _NUMBERS:
        why = ": complex numbers support SUM, AVG and PREMUL_SUM"
    return RuntimeError(f"unsupported reduction {op.name} of {name}{why}")
