"""The enums of the API. Their values are those of ``pccl.h``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy
    import torch


class ReduceOp(Enum):
    """How the values of the peers become one."""

    SUM = 0
    AVG = 1
    """The sum divided by the number of peers; integers are rounded toward zero."""
    PROD = 2
    MAX = 3
    MIN = 4


class Attribute(Enum):
    """What :meth:`Communicator.get_attribute` can tell. World sizes count accepted peers."""

    GLOBAL_WORLD_SIZE = 1
    """Peers of the run, in all groups."""
    PEER_GROUP_WORLD_SIZE = 2
    """Peers of this peer's group."""
    LOCAL_WORLD_SIZE = 2
    CURRENT_WORLD_SIZE = 2
    NUM_DISTINCT_PEER_GROUPS = 3
    """Groups that have peers."""
    LARGEST_PEER_GROUP_WORLD_SIZE = 4
    """Peers of the group that has most of them."""


class DeviceType(Enum):
    """Where a tensor lies."""

    CPU = 0
    CUDA = 1


class DistributionHint(Enum):
    """How values are spread. Unused at present: quantisation measures the range of the values."""

    NONE = 0
    NORMAL = 1
    UNIFORM = 2


class QuantizationAlgorithm(Enum):
    """How values become shorter on the wire. Every peer still ends with the same bits."""

    NONE = 0
    MIN_MAX = 1
    """To UINT8, UINT16 or UINT32, between the smallest and the largest value of each chunk."""
    ZERO_POINT_SCALE = 2
    """To INT8, UINT8, INT16, UINT16, INT32 or UINT32, by a scale and the number that zero becomes."""


class SharedStateSyncStrategy(Enum):
    """Whose content a sync of the shared state takes."""

    ENFORCE_POPULAR = 0
    """What most peers hold wins; the others fetch it."""
    RECEIVE_ONLY = 1
    """This peer's content never wins, and is never sent."""
    SEND_ONLY = 2
    """This peer's content must win."""


class DataType(Enum):
    """The type of a tensor's elements."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    UINT32 = 4
    INT32 = 5
    UINT64 = 6
    INT64 = 7
    FLOAT16 = 8
    BFLOAT16 = 9
    FLOAT = 10
    DOUBLE = 11

    @property
    def _library_name(self) -> str:
        """What numpy and torch call it."""
        return {"FLOAT": "float32", "DOUBLE": "float64"}.get(self.name, self.name.lower())

    @classmethod
    def _of_library(cls, name: str) -> DataType:
        for member in cls:
            if member._library_name == name:
                return member
        known = ", ".join(member.name for member in cls)
        raise TypeError(f"{name} is no data type that can be reduced or shared: {known} are")

    @classmethod
    def from_torch_dtype(cls, dtype: torch.dtype) -> DataType:
        """The type that torch calls so.

        >>> import torch
        >>> DataType.from_torch_dtype(torch.bfloat16)
        <DataType.BFLOAT16: 9>
        """
        return cls._of_library(str(dtype).removeprefix("torch."))

    def to_torch_dtype(self) -> torch.dtype:
        """What torch calls this type."""
        dtype: torch.dtype = getattr(_torch(), self._library_name)
        return dtype

    @classmethod
    def from_numpy_dtype(cls, dtype: Any) -> DataType:
        """The type that numpy calls so.

        >>> import numpy as np
        >>> DataType.from_numpy_dtype(np.float32)
        <DataType.FLOAT: 10>
        """
        known = _numpy().dtype(dtype)
        if not known.isnative:
            raise TypeError(f"{known.str} is in another byte order than this machine's")
        return cls._of_library(known.name)

    def to_numpy_dtype(self) -> numpy.dtype[Any]:
        """What numpy calls this type. It has no name for BFLOAT16."""
        if self is DataType.BFLOAT16:
            raise TypeError(
                "numpy has no bfloat16: hold the bits as uint16, and say DataType.BFLOAT16 where they are used"
            )
        dtype: numpy.dtype[Any] = _numpy().dtype(self._library_name)
        return dtype


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("torch is not installed: pip install torch") from error
    return torch


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("numpy is not installed: pip install numpy") from error
    return numpy


_Kind = TypeVar("_Kind")


def require(value: object, kind: type[_Kind], name: str) -> _Kind:
    """The argument is of its kind, or a TypeError says what it is."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is a {kind.__name__}, and not {value!r}")
    return value
