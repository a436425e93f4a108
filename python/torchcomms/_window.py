"""Windows: tensors that other ranks write without a call of this rank."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from torchcomms import _compile
from torchcomms._hints import check_call_hints
from torchcomms._keywords import also_named
from torchcomms._options import Hints, OperationOptions, TimeoutLike, chosen, seconds
from torchcomms._window_buffer import RegisteredBuffer
from torchcomms._work import Pending, TorchWork

if TYPE_CHECKING:
    import torch
    from ringfold import _native

    from torchcomms._device import Device
    from torchcomms._device_window import DeviceWindow, DeviceWindowHandle

    AnyWindow = _native.Window | DeviceWindow


_HAS_TENSOR = "the window already has a registered tensor: call tensor_deregister() first"


class TorchCommWinAccessType(Enum):
    """How a rank's tensor is accessed."""

    WIN_ACCESS_TYPE_UNIFIED = 0
    """Shared memory: this rank can read and write it."""
    WIN_ACCESS_TYPE_SEPARATE = 1
    """Over TCP: this rank can put into it, but not read it."""


@dataclass(frozen=True)
class TorchCommWindowAttr:
    """Attributes of a rank's tensor in a window."""

    access_type: TorchCommWinAccessType


class TorchCommWindow:
    """A window. Made by :meth:`torchcomms.TorchComm.new_window`.

    Each rank registers a tensor, and the others put into it. A signal arrives after all earlier puts of its sender; each
    ``wait_signal`` takes one. Between ranks of one host a put is a copy in shared memory; otherwise it goes over TCP.

    The tensors of a window may be CUDA tensors, on all ranks. Then operations are queued on the current stream, or, with
    ``async_op``, on one of their own, and CUDA graphs can capture them.
    """

    def __init__(
        self,
        group: _native.Group,
        shares: bool = True,
        flush: Callable[[], None] | None = None,
        device: Callable[[], Device | None] | None = None,
    ) -> None:
        self._group = group
        self._flush = flush or _nothing
        """Waits for operations that the window's collective calls must not overtake."""
        self._shares = shares
        self._device = device or _nothing
        """The device of the communicator, if it has one."""
        self._window: _native.Window | DeviceWindow | None = None
        self._tensor: Callable[[], torch.Tensor | None] = _nothing
        self._bytes = 0
        self._tensors: dict[int, tuple[torch.dtype, list[int]]] = {}
        self._buffers: set[RegisteredBuffer] = set()

    _graph_handle: str
    """Its name in graphs, if :mod:`torchcomms.functional` is enabled."""

    _supervise: Callable[[TorchWork, str, float], None] | None = None
    """Told of each operation, with its name and the time of its start, if failures end the process."""

    # --- the tensor ------------------------------------------------------------------------------------------------

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Registers a tensor. All ranks call this; their tensors may differ in size, and may be empty.

        The tensor is moved into shared memory, in place, as ``share_memory_()`` does; if that fails, other ranks use TCP. Its
        storage must not be resized or moved afterwards. Unless ``owning``, the window keeps only the memory alive, not the
        tensor.
        """
        if self._window is not None:
            raise RuntimeError(_HAS_TENSOR)
        _check(tensor, "a window's tensor")
        if tensor.is_cuda:
            self._window = self._open_on_device(tensor)
            self._set_tensor(tensor, owning)
            return
        from ringfold._native import Window

        from torchcomms._shared_storage import Pinned, share

        storage = tensor.untyped_storage()
        self._flush()
        file = share(storage) if self._shares else None
        where = None if file is None else (file, tensor.data_ptr() - storage.data_ptr())
        keep = Pinned(storage) if file is None else storage
        self._window = Window.open(self._group, _span(tensor), where, _encode(tensor), keep)
        self._set_tensor(tensor, owning)

    def _open_on_device(self, tensor: torch.Tensor) -> DeviceWindow:
        from torchcomms._device_window import DeviceWindow

        device = self._device()
        if device is None or not device.is_on_one_host:
            raise RuntimeError(
                "unsupported CUDA tensor of a window: this communicator has no CUDA device, or its ranks cannot reach each "
                "other's devices; make it for the device, new_comm(backend, torch.device('cuda', ...)), on one host"
            )
        self._flush()
        return DeviceWindow(device, tensor, _encode(tensor))

    def tensor_deregister(self) -> None:
        """Removes the tensor. All ranks call this; when it returns, all puts into the tensor have arrived."""
        window = self._require()
        self._window = None
        self._tensors.clear()
        self._clear_tensor()
        self._flush()
        window.close()

    def get_tensor(self) -> torch.Tensor | None:
        """This rank's tensor."""
        return self._tensor()

    def get_size(self) -> int:
        """The size of this rank's tensor in bytes; 0 without one."""
        return self._bytes

    @property
    def shape(self) -> list[int]:
        """The shape of this rank's tensor."""
        tensor = self._tensor()
        return [] if tensor is None else list(tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Its element type."""
        return self._require_tensor().dtype

    @property
    def device(self) -> torch.device:
        """Its device."""
        return self._require_tensor().device

    # --- tensors of other ranks ------------------------------------------------------------------------------------

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        """The attributes of a rank's tensor."""
        is_unified = self._require().is_mapped(self._rank(peer_rank))
        kind = TorchCommWinAccessType
        return TorchCommWindowAttr(
            kind.WIN_ACCESS_TYPE_UNIFIED if is_unified else kind.WIN_ACCESS_TYPE_SEPARATE
        )

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """A rank's tensor itself, not a copy. Only with shared memory. A CUDA tensor is valid until :meth:`tensor_deregister`."""
        window = self._require()
        if self._rank(rank) == self._group.rank:
            return self._require_tensor()
        dtype, shape = self._description(window, rank)
        if isinstance(window, _device_window()):
            return window.tensor(rank, dtype, shape)
        file = window.file(rank)
        import torch

        if file is None and window.is_mapped(rank):
            return torch.empty(shape, dtype=dtype)
        if file is None:
            raise RuntimeError(
                f"mapping the tensor of rank {rank} failed: its memory is not shared with this rank"
            )
        from torchcomms._shared_storage import mapped

        number, start = file
        strides = torch.empty(shape, dtype=dtype, device="meta").stride()
        return torch.empty(0, dtype=dtype).set_(mapped(number), start // dtype.itemsize, shape, strides)

    @also_named(offset="target_offset_nelems")
    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        hints: Hints | OperationOptions = None,
        timeout: TimeoutLike = None,
        options: OperationOptions | None = None,
    ) -> TorchWork:
        """Writes a tensor into that of another rank, at an offset in elements.

        When it has ended, ``tensor`` may change again; a later signal tells the other rank that it has arrived.
        """
        return self._put(tensor, dst_rank, target_offset_nelems, async_op, *chosen(hints, timeout, options))

    @also_named(offset="source_offset_nelems")
    def get(
        self,
        tensor: torch.Tensor,
        src_rank: int,
        source_offset_nelems: int,
        async_op: bool,
        hints: Hints | OperationOptions = None,
        timeout: TimeoutLike = None,
        options: OperationOptions | None = None,
    ) -> TorchWork:
        """Reads a part of another rank's tensor, at an offset in elements. Only with CUDA tensors, or with shared memory."""
        return self._get(tensor, src_rank, source_offset_nelems, async_op, *chosen(hints, timeout, options))

    @also_named(peer_rank="dst_rank")
    def signal(
        self,
        dst_rank: int,
        async_op: bool,
        hints: Hints | OperationOptions = None,
        timeout: TimeoutLike = None,
        options: OperationOptions | None = None,
    ) -> TorchWork:
        """Signals a rank that all earlier puts into its tensor have arrived. Ends when the signal is queued."""
        return self._signal(dst_rank, async_op, *chosen(hints, timeout, options))

    def wait_signal(
        self,
        peer_rank: int,
        async_op: bool,
        hints: Hints | OperationOptions = None,
        timeout: TimeoutLike = None,
        options: OperationOptions | None = None,
    ) -> TorchWork:
        """Waits for a rank's next signal, and takes it. After a timeout it may be waited for again.

        With CUDA tensors the stream waits, not the host, and a timeout fails the communicator.
        """
        return self._wait_signal(peer_rank, async_op, *chosen(hints, timeout, options))

    # --- kernels ---------------------------------------------------------------------------------------------------

    def get_device_window(
        self, signal_count: int = -1, counter_count: int = -1, barrier_count: int = -1
    ) -> DeviceWindowHandle:
        """This window for your own CUDA kernels, which include ``torchcomms/window_device.hpp``. Only with CUDA tensors.

        It has a signal for each rank, and no counters and barriers; asking for more raises. -1 is what there is. It is valid until :meth:`tensor_deregister`, which waits for the current stream: kernels on other streams that use it
        must have ended.
        """
        window = self._require()
        if signal_count > self._group.world or counter_count > 0 or barrier_count > 0:
            raise RuntimeError(
                f"unsupported window for kernels with {signal_count} signals, {counter_count} counters and {barrier_count} "
                f"barriers: it has {self._group.world} signals, and neither of the others"
            )
        if not isinstance(window, _device_window()):
            raise RuntimeError(
                "unsupported window for kernels: its tensor is in host memory; register a CUDA tensor on all ranks"
            )
        return window.handle()

    def register_local_buffer(self, tensor: torch.Tensor) -> RegisteredBuffer:
        """Keeps the memory of a tensor of this rank for kernels that put from it. Not collective.

        The tensor is on the device of the window's own tensor.
        """
        device = self._require_tensor().device
        _check(tensor, "a local buffer")
        if tensor.device != device:
            raise RuntimeError(
                f"invalid device {tensor.device} of a local buffer: the window's tensor is on {device}"
            )
        buffer = RegisteredBuffer(tensor)
        self._buffers.add(buffer)
        return buffer

    @also_named(handle="buffer")
    def deregister_local_buffer(self, buffer: RegisteredBuffer) -> None:
        """Releases a buffer of :meth:`register_local_buffer`. Kernels that use it must have ended."""
        if buffer not in self._buffers:
            raise RuntimeError(f"invalid buffer {buffer!r}: it is not registered with this window")
        self._buffers.remove(buffer)

    # --- copies ----------------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A new window with a clone of the tensor; all ranks make it together."""
        copy = self._new()
        _compile.enroll_window(copy)
        memo[id(self)] = copy
        tensor = self._tensor()
        if tensor is not None:
            copy.tensor_register(tensor.detach().clone())
        return copy

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, bytes={self._bytes})"

    def _new(self) -> Self:
        new = type(self)(self._group, self._shares, self._flush, self._device)
        new._supervise = self._supervise
        return new

    def _set_tensor(self, tensor: torch.Tensor, owning: bool) -> None:
        self._tensor = (lambda: tensor) if owning else weakref.ref(tensor)
        self._bytes = tensor.numel() * tensor.element_size()

    def _clear_tensor(self) -> None:
        self._tensor, self._bytes = _nothing, 0

    def _offset(self, window: AnyWindow, op: str, rank: int, elements: int, tensor: torch.Tensor) -> int:
        """The offset in bytes of a part of a rank's tensor, which is read or written by ``tensor``."""
        dtype, _ = self._description(window, self._rank(rank))
        if tensor.dtype != dtype:
            raise RuntimeError(
                f"invalid element type of the {op}: {tensor.dtype}, but the tensor of rank {rank} has {dtype}"
            )
        if tensor.is_cuda != isinstance(window, _device_window()):
            raise RuntimeError(
                f"invalid device {tensor.device} of the {op}: the window's tensors are on {self.device.type}"
            )
        size = window.size(rank) // dtype.itemsize
        if elements < 0 or elements + tensor.numel() > size:
            raise RuntimeError(
                f"invalid {op} of {tensor.numel()} elements at offset {elements}: past the end of the tensor of rank {rank}, "
                f"which has {size} elements"
            )
        return elements * dtype.itemsize

    # The operations themselves: compiled functions replace these, see torchcomms.functional.

    def _put(
        self,
        tensor: torch.Tensor,
        rank: int,
        elements: int,
        async_op: bool,
        hints: Hints,
        timeout: TimeoutLike,
    ) -> TorchWork:
        window = self._require()
        _check(tensor, "the tensor to put")
        offset = self._offset(window, "put", rank, elements, tensor)
        return self._run(
            lambda: window.put(_span(tensor), rank, offset, seconds(timeout), tensor),
            lambda device: device.put(tensor, rank, offset, async_op),
            *("put", async_op, hints),
        )

    def _get(
        self,
        tensor: torch.Tensor,
        rank: int,
        elements: int,
        async_op: bool,
        hints: Hints,
        timeout: TimeoutLike,
    ) -> TorchWork:
        window = self._require()
        _check(tensor, "the tensor to read into")
        offset = self._offset(window, "get", rank, elements, tensor)

        def copy() -> None:
            part = self.map_remote_tensor(rank).view(-1)[elements : elements + tensor.numel()]
            tensor.view(-1).copy_(part)

        return self._run(
            copy, lambda device: device.get(tensor, rank, offset, async_op), "get", async_op, hints
        )

    def _signal(self, peer: int, async_op: bool, hints: Hints, timeout: TimeoutLike) -> TorchWork:
        window, rank = self._require(), self._rank(peer)
        return self._run(
            lambda: window.signal(rank, seconds(timeout)),
            lambda device: device.signal(rank, async_op),
            *("signal", async_op, hints),
        )

    def _wait_signal(self, peer: int, async_op: bool, hints: Hints, timeout: TimeoutLike) -> TorchWork:
        window, rank = self._require(), self._rank(peer)
        return self._run(
            lambda: window.wait_signal(rank, seconds(timeout)),
            lambda device: device.wait_signal(rank, seconds(timeout), async_op),
            *("wait_signal", async_op, hints),
        )

    def _run(
        self,
        begin: Callable[[], Pending | None],
        queue: Callable[[DeviceWindow], TorchWork],
        op: str,
        async_op: bool,
        hints: Hints,
    ) -> TorchWork:
        """Starts an operation: on host memory, or on a device."""
        from ringfold._error import GroupError

        if hints:
            check_call_hints(hints, op, takes_priority=False)
        began = time.monotonic()
        try:
            window = self._window
            if isinstance(window, _device_window()):
                work = queue(window)
            else:
                from torchcomms._device import refuse_capture

                refuse_capture(f"{op} of a window in host memory")
                work = TorchWork(begin())
        except GroupError as error:
            work = TorchWork(error=error)
        if self._supervise is not None:
            self._supervise(work, op, began)
        if not async_op:
            work.wait()
        return work

    def _description(self, window: AnyWindow, rank: int) -> tuple[torch.dtype, list[int]]:
        """The type and shape of a rank's tensor."""
        known = self._tensors.get(rank)
        if known is None:
            known = self._tensors[rank] = _decode(window.about(rank))
        return known

    def _rank(self, rank: int) -> int:
        if not 0 <= rank < self._group.world:
            raise RuntimeError(f"rank {rank} is out of range: ranks are 0 to {self._group.world - 1}")
        return rank

    def _require(self) -> Any:
        if self._window is None:
            raise RuntimeError("the window has no registered tensor: call tensor_register() first")
        return self._window

    def _require_tensor(self) -> torch.Tensor:
        tensor = self._tensor()
        if tensor is None:
            raise RuntimeError("the window has no registered tensor: call tensor_register() first")
        return tensor


class FakeWindow(TorchCommWindow):
    """A window of the backend ``fake``: it holds a tensor; everything else does nothing."""

    def __init__(self) -> None:
        self._tensor, self._bytes = _nothing, 0
        self._buffers = set()

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Holds a tensor."""
        if self._tensor() is not None:
            raise RuntimeError(_HAS_TENSOR)
        self._set_tensor(tensor, owning)

    def tensor_deregister(self) -> None:
        """Drops the tensor."""
        self._require_tensor()
        self._clear_tensor()

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        """Unified: there is only one rank."""
        return TorchCommWindowAttr(TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED)

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """The tensor itself."""
        return self._require_tensor()

    def get_device_window(self, *_: Any, **__: Any) -> DeviceWindowHandle:
        """Raises: there is no memory for kernels."""
        raise RuntimeError("unsupported window for kernels: the backend fake has none")

    def _put(self, *_: Any) -> TorchWork:
        return TorchWork()

    def _get(self, *_: Any) -> TorchWork:
        return TorchWork()

    def _signal(self, *_: Any) -> TorchWork:
        return TorchWork()

    def _wait_signal(self, *_: Any) -> TorchWork:
        return TorchWork()

    def _new(self) -> Self:
        return type(self)()


def _nothing() -> None:
    return None


def _device_window() -> type[DeviceWindow]:
    """The class of windows on devices, which needs torch."""
    from torchcomms._device_window import DeviceWindow

    return DeviceWindow


def _check(tensor: torch.Tensor, what: str) -> None:
    if not tensor.is_cpu and not tensor.is_cuda:
        raise RuntimeError(
            f"unsupported device {tensor.device} of {what}: windows need tensors in host memory or on a CUDA device"
        )
    if not tensor.is_contiguous():
        raise RuntimeError(f"{what} is not contiguous")
    if tensor.is_conj() or tensor.is_neg():
        raise RuntimeError(
            f"{what} is a conjugated or negated view: call resolve_conj() or resolve_neg() first"
        )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _encode(tensor: torch.Tensor) -> bytes:
    """The element type and shape of a tensor, for other ranks."""
    return json.dumps([str(tensor.dtype).removeprefix("torch."), *tensor.shape]).encode()


def _decode(about: bytes) -> tuple[torch.dtype, list[int]]:
    import torch

    name, *shape = json.loads(about)
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise RuntimeError(f"unsupported element type {name} by this version of torch")
    return dtype, shape
