"""The shared state of a peer group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pccl._enums import DataType, DeviceType
from pccl._require import require_numpy, require_torch
from ringfold._native import Tensor

if TYPE_CHECKING:
    import numpy
    import torch


class TensorInfo:
    """A tensor of a shared state, with the same name on all peers.

    The tensor is kept alive, and a sync may write it. Create it from a tensor or array::

        TensorInfo.from_torch(model.weight, "weight")
        TensorInfo.from_numpy(array, "array")
        TensorInfo(name="array", data=array)

    or from an address, whose memory the caller keeps alive::

        TensorInfo("array", data_ptr, numel=1000, dtype=DataType.FLOAT, device_type=DeviceType.CPU)

    With ``allow_content_inequality`` peers may have different contents; a new peer receives it at its first sync.
    """

    __slots__ = ("name", "allow_content_inequality", "_data", "_seen_as", "_tensor")

    def __init__(
        self,
        name: str,
        data_ptr: int | None = None,
        *,
        data: Any = None,
        numel: int | None = None,
        dtype: DataType | None = None,
        device_type: DeviceType = DeviceType.CPU,
        allow_content_inequality: bool = False,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"invalid name: must be a string, not a {type(name).__name__}")
        if (data_ptr is None) == (data is None):
            raise TypeError(f"invalid tensor {name!r}: pass either data, or data_ptr with numel and dtype")
        self.name = name
        self.allow_content_inequality = bool(allow_content_inequality)
        self._data = data
        self._seen_as = dtype
        if data is not None:
            tensor = self._export()
            if numel is not None and numel != tensor.count:
                raise ValueError(f"invalid numel {numel}: {name!r} has {tensor.count} elements")
        else:
            if numel is None or dtype is None or data_ptr is None:
                raise TypeError(f"invalid tensor {name!r}: an address needs numel and dtype")
            tensor = Tensor.at(data_ptr, numel, dtype.value, device_type.value, None)
        self._tensor = tensor

    def _export(self) -> Tensor:
        """The current memory of the tensor. It waits for work on the tensor's GPU stream."""
        if self._data is None:
            return self._tensor
        name, dtype = self.name, self._seen_as
        tensor = Tensor(self._data, repr(name))
        if dtype is not None and dtype.value != tensor.dtype:
            # numpy has no bfloat16.
            if {tensor.dtype, dtype.value} != {DataType.UINT16.value, DataType.BFLOAT16.value}:
                raise TypeError(f"invalid dtype {dtype.name}: {name!r} has {DataType(tensor.dtype).name}")
            tensor = Tensor.at(tensor.address, tensor.count, dtype.value, tensor.device, tensor)
        self._tensor = tensor
        return tensor

    @classmethod
    def from_torch(
        cls, tensor: torch.Tensor, name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """A torch tensor on the CPU or a GPU; parameters are written in place."""
        require_torch(tensor, repr(name))
        return cls(name, data=tensor, allow_content_inequality=allow_content_inequality)

    @classmethod
    def from_numpy(
        cls, tensor: numpy.ndarray[Any, Any], name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """A numpy array."""
        require_numpy(tensor, repr(name))
        return cls(name, data=tensor, allow_content_inequality=allow_content_inequality)

    @property
    def numel(self) -> int:
        """The number of elements."""
        return self._tensor.count

    @property
    def dtype(self) -> DataType:
        """The data type."""
        return DataType(self._tensor.dtype)

    @property
    def device_type(self) -> DeviceType:
        """The memory type."""
        return DeviceType(self._tensor.device)

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._tensor.address

    def __repr__(self) -> str:
        return f"TensorInfo({self.name!r}, {self.numel} x {self.dtype.name}, {self.device_type.name})"


class SharedState:
    """Tensors that must be equal on all peers of a group, and the revision of their content.

    ``revision`` starts at 0 and grows by one on all peers whenever they change the content, as by an optimiser step. After
    a sync it is the elected one, so that a new peer knows the step of the run.
    """

    __slots__ = ("infos", "revision")

    def __init__(
        self,
        tensor_infos: Sequence[TensorInfo] | None = None,
        *,
        infos: Sequence[TensorInfo] | None = None,
    ) -> None:
        given = infos if tensor_infos is None else tensor_infos
        if given is None or (infos is not None and tensor_infos is not None):
            raise TypeError("invalid shared state: pass tensor_infos, or its alias infos")
        self.infos = list(given)
        names = set()
        for info in self.infos:
            if not isinstance(info, TensorInfo):
                raise TypeError(f"invalid entry: must be a TensorInfo, not a {type(info).__name__}")
            if info.name in names:
                raise ValueError(f"duplicate name {info.name!r} in the shared state")
            names.add(info.name)
        self.revision = 0

    def push_revision(self) -> None:
        """Increments the revision, after the content has changed."""
        self.revision += 1

    def __repr__(self) -> str:
        return f"SharedState({len(self.infos)} tensors, revision {self.revision})"


@dataclass(frozen=True, slots=True)
class SharedStateSyncInfo:
    """The report of a sync: bytes of tensors sent and received."""

    tx_bytes: int
    rx_bytes: int
