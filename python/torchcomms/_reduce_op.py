"""Reductions."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch


class RedOpType(Enum):
    """The kinds of reductions."""

    # Each reduction looks up a member. Hashing by identity runs no Python code.
    __hash__ = object.__hash__

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6
    PREMUL_SUM = 7
    AVG = 8


# Inside the class, these names would refer to its attributes.
_Type = RedOpType
_Class = type


class ReduceOp:
    """A reduction: ``ReduceOp.SUM``, ``ReduceOp.MAX``, …, or ``ReduceOp.PREMUL_SUM(factor)``. Compares by value."""

    SUM: ClassVar[ReduceOp]
    PRODUCT: ClassVar[ReduceOp]
    MIN: ClassVar[ReduceOp]
    MAX: ClassVar[ReduceOp]
    BAND: ClassVar[ReduceOp]
    BOR: ClassVar[ReduceOp]
    BXOR: ClassVar[ReduceOp]
    AVG: ClassVar[ReduceOp]
    RedOpType = RedOpType

    __slots__ = ("_factor", "_type")

    def __init__(self, type: _Type, factor: float | torch.Tensor | None = None) -> None:
        if not isinstance(type, RedOpType):
            raise TypeError(f"invalid type {type!r}: must be a RedOpType")
        self._type = type
        self._factor = factor

    @staticmethod
    def PREMUL_SUM(factor: float | torch.Tensor) -> ReduceOp:
        """A sum of each rank's values times its factor: a number, or a tensor of one element."""
        return ReduceOp(RedOpType.PREMUL_SUM, factor)

    @property
    def type(self) -> _Type:
        """Its kind."""
        return self._type

    @property
    def factor(self) -> float | torch.Tensor | None:
        """The factor of PREMUL_SUM; None for other kinds."""
        return self._factor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReduceOp):
            return NotImplemented
        return self._type is other._type and _number(self._factor) == _number(other._factor)

    def __hash__(self) -> int:
        return hash((self._type, _number(self._factor)))

    def __copy__(self) -> ReduceOp:
        return ReduceOp(self._type, self._factor)

    def __deepcopy__(self, memo: dict[int, Any]) -> ReduceOp:
        copy = ReduceOp(self._type, _number(self._factor))
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple[_Class, tuple[_Type, float | None]]:
        return (ReduceOp, (self._type, _number(self._factor)))

    def __repr__(self) -> str:
        if self._type is RedOpType.PREMUL_SUM:
            return f"ReduceOp.PREMUL_SUM({self._factor})"
        return f"ReduceOp.{self._type.name}"


def _number(factor: float | torch.Tensor | None) -> float | None:
    return None if factor is None else float(factor)


for _type in RedOpType:
    if _type is not RedOpType.PREMUL_SUM:
        setattr(ReduceOp, _type.name, ReduceOp(_type))
