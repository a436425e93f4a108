"""The enums of the API, with the values of ``pccl.h``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy
    import torch


class ReduceOp(Enum):
    """The reduction."""

    SUM = 0
    AVG = 1
    """The sum divided by the number of peers; integers are rounded toward zero."""
    PROD = 2
    MAX = 3
    MIN = 4


class Attribute(Enum):
    """The world sizes of :meth:`Communicator.get_attribute`. They count accepted peers."""

    GLOBAL_WORLD_SIZE = 1
    """Peers of the run, in all groups."""
    PEER_GROUP_WORLD_SIZE = 2
    """Peers of this peer's group."""
    LOCAL_WORLD_SIZE = 2
    CURRENT_WORLD_SIZE = 2
    NUM_DISTINCT_PEER_GROUPS = 3
    """Groups with at least one peer."""
    LARGEST_PEER_GROUP_WORLD_SIZE = 4
    """Peers of the largest group."""


class DeviceType(Enum):
    """The memory of a tensor."""

    CPU = 0
    CUDA = 1

    @classmethod
    def from_torch_device_type(cls, device_type: str | torch.device) -> DeviceType:
        """The memory of a torch device, such as ``tensor.device`` or ``tensor.device.type``.

        >>> DeviceType.from_torch_device_type("cuda")
        <DeviceType.CUDA: 1>
        """
        name = str(device_type).partition(":")[0].upper()
        if name not in cls.__members__:
            raise ValueError(f"unsupported device type {str(device_type)!r}: must be cpu or cuda")
        return cls[name]


class DistributionHint(Enum):
    """The distribution of values. Currently unused: quantisation measures the range of the values."""

    NONE = 0
    NORMAL = 1
    UNIFORM = 2


class QuantizationAlgorithm(Enum):
    """The quantisation on the wire. All peers still get the same bits."""

    NONE = 0
    MIN_MAX = 1
    """To UINT8, UINT16 or UINT32, between the minimum and maximum of each chunk."""
    ZERO_POINT_SCALE = 2
    """To INT8, UINT8, INT16, UINT16, INT32 or UINT32, with a scale and a zero point."""


class SharedStateSyncStrategy(Enum):
    """The role of a peer in a sync of the shared state."""

    ENFORCE_POPULAR = 0
    """The content that most peers have is elected; the others receive it."""
    RECEIVE_ONLY = 1
    """This peer's content is never elected and never sent."""
    SEND_ONLY = 2
    """This peer's content must be elected."""


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
        """The name in numpy and torch."""
        return {"FLOAT": "float32", "DOUBLE": "float64"}.get(self.name, self.name.lower())

    @classmethod
    def _of_library(cls, name: str) -> DataType:
        for member in cls:
            if member._library_name == name:
                return member
        known = ", ".join(member.name for member in cls)
        raise TypeError(f"unsupported data type {name}: must be one of {known}")

    @classmethod
    def from_torch_dtype(cls, dtype: torch.dtype) -> DataType:
        """The data type of a torch dtype.

        >>> import torch
        >>> DataType.from_torch_dtype(torch.bfloat16)
        <DataType.BFLOAT16: 9>
        """
        return cls._of_library(str(dtype).removeprefix("torch."))

    def to_torch_dtype(self) -> torch.dtype:
        """The torch dtype."""
        dtype: torch.dtype = getattr(_torch(), self._library_name)
        return dtype

    @classmethod
    def from_numpy_dtype(cls, dtype: Any) -> DataType:
        """The data type of a numpy dtype.

        >>> import numpy as np
        >>> DataType.from_numpy_dtype(np.float32)
        <DataType.FLOAT: 10>
        """
        known = _numpy().dtype(dtype)
        if not known.isnative:
            raise TypeError(f"unsupported byte order: {known.str}")
        return cls._of_library(known.name)

    def to_numpy_dtype(self) -> numpy.dtype[Any]:
        """The numpy dtype. There is none for BFLOAT16."""
        if self is DataType.BFLOAT16:
            raise TypeError("numpy has no bfloat16: store the bits as uint16, and pass DataType.BFLOAT16")
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
    """Checks the type of an argument."""
    if not isinstance(value, kind):
        raise TypeError(f"invalid {name}: must be a {kind.__name__}, not {value!r}")
    return value
