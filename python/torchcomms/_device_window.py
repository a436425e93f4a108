"""The window of a CUDA tensor: puts and signals are queued on streams, and never block the host. Needs torch."""

from __future__ import annotations

import torch
from ringfold import _native

from torchcomms._device import Device
from torchcomms._work import TorchWork


class DeviceWindow:
    """A rank's side of a window of CUDA tensors: the counterpart of the engine's window of host memory.

    With ``async_op`` an operation is queued on a stream of its rank and direction, which follows the current one.
    """

    is_on_device = True

    def __init__(self, device: Device, tensor: torch.Tensor, about: bytes) -> None:
        if tensor.device != device.device:
            raise RuntimeError(
                f"invalid device {tensor.device} of a window's tensor: the communicator is on {device.device}"
            )
        self._device = device
        self._window = _native.DeviceWindow.open(
            device.native, tensor.data_ptr(), tensor.nbytes, about, tensor.untyped_storage()
        )

    def put(self, tensor: torch.Tensor, rank: int, offset: int, async_op: bool) -> TorchWork:
        """Writes a tensor into that of a rank, at an offset in bytes."""
        address, nbytes = tensor.data_ptr(), tensor.nbytes
        return self._device.queue(
            lambda stream, own: self._window.put(address, nbytes, rank, offset, stream, own),
            *(("put", rank), tensor, async_op),
        )

    def get(self, tensor: torch.Tensor, rank: int, offset: int, async_op: bool) -> TorchWork:
        """Reads a part of a rank's tensor, at an offset in bytes."""
        address, nbytes = tensor.data_ptr(), tensor.nbytes
        return self._device.queue(
            lambda stream, own: self._window.get(address, nbytes, rank, offset, stream, own),
            *(("put", rank), tensor, async_op),
        )

    def signal(self, rank: int, async_op: bool) -> TorchWork:
        """Signals a rank."""
        return self._device.queue(
            lambda stream, own: self._window.signal(rank, stream, own), ("put", rank), None, async_op
        )

    def wait_signal(self, rank: int, timeout: float | None, async_op: bool) -> TorchWork:
        """Waits on the stream for the next signal of a rank."""
        return self._device.queue(
            lambda stream, own: self._window.wait_signal(rank, timeout, stream, own),
            *(("wait_signal", rank), None, async_op),
        )

    def tensor(self, rank: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        """The tensor of a rank itself."""
        if not self._window.size(rank):
            return torch.empty(shape, dtype=dtype, device=self._device.device)
        address, nbytes = self._window.address(rank), self._window.size(rank)
        return memory_tensor(address, nbytes, self._device.device, self._window).view(dtype).view(shape)

    def handle(self) -> DeviceWindowHandle:
        """The window for kernels."""
        return DeviceWindowHandle(self._window, *self._device.place)

    def size(self, rank: int) -> int:
        return self._window.size(rank)

    def about(self, rank: int) -> bytes:
        return self._window.about(rank)

    def is_mapped(self, rank: int) -> bool:
        return True

    def close(self) -> None:
        """Closes it on all ranks. The host waits for what was queued before, also on the current stream."""
        self._window.close(torch._C._cuda_getCurrentRawStream(self._device.device.index))


class DeviceWindowHandle:
    """A window for CUDA kernels that include ``torchcomms/window_device.hpp``.

    Made by :meth:`torchcomms.TorchCommWindow.get_device_window`, and valid until ``tensor_deregister()``. Its values do not
    change, so that graphs may have captured them.
    """

    __slots__ = ("_window", "rank", "size")

    def __init__(self, window: _native.DeviceWindow, rank: int, size: int) -> None:
        # Keeps the memory that kernels use.
        self._window = window
        window.handle()
        self.rank = rank
        """This rank."""
        self.size = size
        """The number of ranks."""

    @property
    def raw(self) -> bytes:
        """A ``torchcomms::DeviceWindow``, to be passed to a kernel by value. Raises if the communicator has failed."""
        return self._window.handle()[0]

    @property
    def address(self) -> int:
        """The address of a ``torchcomms::DeviceWindow`` in device memory, to be passed as a pointer."""
        return self._window.handle()[1]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: rank {self.rank} of {self.size}>"


def memory_tensor(address: int, nbytes: int, device: torch.device, owner: object) -> torch.Tensor:
    """The memory of a CUDA device at an address, as a tensor of bytes. It keeps the owner alive."""
    return torch.as_tensor(_Memory(address, nbytes, owner), device=device)


class _Memory:
    """Bytes of a device, as torch takes them."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
