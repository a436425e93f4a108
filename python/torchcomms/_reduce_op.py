"""How values are combined."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch


class RedOpType(Enum):
    """The kinds of reductions."""

    # Members are the only objects of their value, and each reduction looks something up by one of them.
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


# Within the class, its attribute of this name would be meant.
_Type = RedOpType
_Class = type


class ReduceOp:
    """A reduction: ``ReduceOp.SUM``, ``ReduceOp.MAX``, …, or ``ReduceOp.PREMUL_SUM(factor)``, which multiplies each
    rank's values by its factor and sums the products. Reductions compare by value.
    """

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
            raise TypeError(f"a RedOpType is expected, not {type!r}")
        self._type = type
        self._factor = factor

    @staticmethod
    def PREMUL_SUM(factor: float | torch.Tensor) -> ReduceOp:
        """Multiplies by this factor (a number, or a tensor of one element) before the sum."""
        return ReduceOp(RedOpType.PREMUL_SUM, factor)

    @property
    def type(self) -> _Type:
        """Which kind it is."""
        return self._type

    @property
    def factor(self) -> float | torch.Tensor | None:
        """What values are multiplied by before the sum; None for all other kinds."""
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
        twin = ReduceOp(self._type, _number(self._factor))
        memo[id(self)] = twin
        return twin

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
