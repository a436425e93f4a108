"""The state that the peers of a group hold in common."""

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
    """One tensor of a shared state, under a name that is the same on all peers.

    The tensor is kept alive, and a sync may write into it. Made from anything that numpy or torch hold::

        TensorInfo.from_torch(model.weight, "weight")
        TensorInfo.from_numpy(array, "array")
        TensorInfo(name="array", data=array)

    or from an address, whose memory the caller keeps::

        TensorInfo("array", data_ptr, numel=1000, dtype=DataType.FLOAT, device_type=DeviceType.CPU)

    ``allow_content_inequality`` lets peers hold different contents; only who syncs for the first time is given the
    others'.
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
            raise TypeError(f"the name of a tensor is a string, and no {type(name).__name__}")
        if (data_ptr is None) == (data is None):
            raise TypeError(f"{name!r} needs either data, or data_ptr with numel and dtype")
        self.name = name
        self.allow_content_inequality = bool(allow_content_inequality)
        self._data = data
        self._seen_as = dtype
        if data is not None:
            tensor = self._export()
            if numel is not None and numel != tensor.count:
                raise ValueError(f"{name!r} has {tensor.count} elements, and not {numel}")
        else:
            if numel is None or dtype is None or data_ptr is None:
                raise TypeError(f"{name!r} is given as an address, so numel and dtype are needed")
            tensor = Tensor.at(data_ptr, numel, dtype.value, device_type.value, None)
        self._tensor = tensor

    def _export(self) -> Tensor:
        """Where the tensor lies now: it may have been moved since, and what is queued on its GPU stream is waited for."""
        if self._data is None:
            return self._tensor
        name, dtype = self.name, self._seen_as
        tensor = Tensor(self._data, repr(name))
        if dtype is not None and dtype.value != tensor.dtype:
            # Bits that numpy has no name for.
            if {tensor.dtype, dtype.value} != {DataType.UINT16.value, DataType.BFLOAT16.value}:
                raise TypeError(
                    f"{name!r} has elements of {DataType(tensor.dtype).name}, and not {dtype.name}"
                )
            tensor = Tensor.at(tensor.address, tensor.count, dtype.value, tensor.device, tensor)
        self._tensor = tensor
        return tensor

    @classmethod
    def from_torch(
        cls, tensor: torch.Tensor, name: str, *, allow_content_inequality: bool = False
    ) -> TensorInfo:
        """A torch tensor, on the CPU or on a GPU; parameters are written in place."""
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
        """How many elements it has."""
        return self._tensor.count

    @property
    def dtype(self) -> DataType:
        """What they are."""
        return DataType(self._tensor.dtype)

    @property
    def device_type(self) -> DeviceType:
        """Where they lie."""
        return DeviceType(self._tensor.device)

    @property
    def data_ptr(self) -> int:
        """The address of the first."""
        return self._tensor.address

    def __repr__(self) -> str:
        return f"TensorInfo({self.name!r}, {self.numel} x {self.dtype.name}, {self.device_type.name})"


class SharedState:
    """Tensors that all peers of a group shall hold alike, and the revision of their content.

    ``revision`` starts at 0 and is raised by one, on all peers, whenever the content has changed by what all peers do
    alike (an optimiser's step, say). After a sync it is the elected one, so a newcomer learns where the run is.
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
            raise TypeError("a shared state needs tensor_infos, or infos, which is another name of it")
        self.infos = list(given)
        for info in self.infos:
            if not isinstance(info, TensorInfo):
                raise TypeError(f"a shared state is made of TensorInfo, and not of {type(info).__name__}")
        names = [info.name for info in self.infos]
        twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        if twice:
            raise ValueError(f"the name {sorted(twice)[0]!r} is in the shared state twice")
        self.revision = 0

    def push_revision(self) -> None:
        """The content has changed: the revision is one higher."""
        self.revision += 1

    def __repr__(self) -> str:
        return f"SharedState({len(self.infos)} tensors, revision {self.revision})"


@dataclass(frozen=True, slots=True)
class SharedStateSyncInfo:
    """What a sync reports: the bytes of tensors that were sent and received."""

    tx_bytes: int
    rx_bytes: int
