"""What torch's element types and reductions are for the engine. Needs torch, so it is imported with the first communicator."""

from __future__ import annotations

import torch

from torchcomms._reduce_op import RedOpType

U8 = 0
SUM = 0

# The numbers of the engine's element types.
_NUMBERS = {
    torch.uint8: U8,
    torch.int8: 1,
    torch.int16: 2,
    torch.uint16: 3,
    torch.uint32: 4,
    torch.int32: 5,
    torch.uint64: 6,
    torch.int64: 7,
    torch.float16: 8,
    torch.bfloat16: 9,
    torch.float32: 10,
    torch.float64: 11,
    torch.complex64: 12,
    torch.complex128: 13,
}
# The numbers of the engine's reductions. A factor is applied before, so that a sum is left.
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


# How elements are moved: the number of the engine's type. All others are moved as bytes.
MOVED: dict[torch.dtype, int] = {**_NUMBERS, torch.bool: U8}


def _reduced(dtype: torch.dtype, op: RedOpType) -> tuple[int, int] | None:
    if dtype is torch.bool:
        return (U8, _OF_BOOL[op]) if op in _OF_BOOL else None
    if dtype not in _NUMBERS:
        return None
    if dtype.is_complex:
        # The engine adds them, and does not average them; as pairs of real numbers it does both.
        real = torch.float32 if dtype is torch.complex64 else torch.float64
        return (_NUMBERS[real], _REDUCTIONS[op]) if op in _OF_COMPLEX else None
    if dtype.is_floating_point and op in _BITWISE:
        return None
    return _NUMBERS[dtype], _REDUCTIONS[op]


# How elements are reduced: the numbers of the engine's type and reduction, for all pairs that can be.
REDUCED: dict[tuple[torch.dtype, RedOpType], tuple[int, int]] = {
    (dtype, op): numbers
    for dtype in (*_NUMBERS, torch.bool)
    for op in RedOpType
    if (numbers := _reduced(dtype, op)) is not None
}


def not_reduced(dtype: torch.dtype, op: RedOpType) -> RuntimeError:
    """Why a pair is not among :data:`REDUCED`."""
    name = str(dtype).removeprefix("torch.")
    if op in _BITWISE and dtype.is_floating_point and dtype in _NUMBERS:
        return RuntimeError(f"{op.name} is a bitwise reduction, which {name} does not have")
    if dtype.is_complex and dtype in _NUMBERS:
        return RuntimeError(
            f"{op.name} is not defined for {name}: complex numbers can be summed and averaged"
        )
    return RuntimeError(f"{op.name} is not defined for {name}")
