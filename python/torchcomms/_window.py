"""Windows: tensors that the other ranks of a communicator can write without this rank's help."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from torchcomms._options import seconds
from torchcomms._work import Pending, TorchWork

if TYPE_CHECKING:
    import torch
    from ringfold import _native

Timed = timedelta | float | None
Hints = dict[str, str] | None


class TorchCommWinAccessType(Enum):
    """How a rank's part of a window is reached."""

    WIN_ACCESS_TYPE_UNIFIED = 0
    """Its memory is shared with this rank: what one writes the other sees."""
    WIN_ACCESS_TYPE_SEPARATE = 1
    """Over the network: it can be put into, and not be looked at."""


@dataclass(frozen=True)
class TorchCommWindowAttr:
    """What is known of a rank's part of a window."""

    access_type: TorchCommWinAccessType


class TorchCommWindow:
    """A window. Made by :meth:`torchcomms.TorchComm.new_window`.

    Each rank registers a tensor, and the others put into it. A signal tells a rank that what was put into its tensor
    before is there; each ``wait_signal`` takes one. Between ranks of one host the tensors' memory is shared, and a put is
    a copy; elsewhere it goes over TCP.
    """

    def __init__(
        self, group: _native.Group, shares: bool = True, settle: Callable[[], None] | None = None
    ) -> None:
        self._group = group
        self._settle = settle or _nothing
        """Waits for operations that those of all ranks on the window must not overtake."""
        self._shares = shares
        self._window: _native.Window | None = None
        self._tensor: Callable[[], torch.Tensor | None] = _nothing
        self._bytes = 0
        self._tensors: dict[int, tuple[torch.dtype, list[int]]] = {}

    # --- the tensor ------------------------------------------------------------------------------------------------

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Lays a tensor open. All ranks do so together; their tensors may differ in size, and may be empty.

        The tensor's memory is moved into shared memory, in place, as ``share_memory_()`` does; if that can't be, other
        ranks reach it over TCP. From now on its storage must be neither resized nor moved. Unless ``owning``, the
        window does not keep the tensor alive, only its memory.
        """
        self._require_none()
        _check(tensor, "a window's tensor")
        from ringfold._native import Window

        from torchcomms._shared_storage import Pinned, share

        storage = tensor.untyped_storage()
        is_wanted = self._shares and os.environ.get("RINGFOLD_SHARED_MEMORY") != "0"
        self._settle()
        file = share(storage) if is_wanted else None
        where = None if file is None else (file, tensor.data_ptr() - storage.data_ptr())
        keep = Pinned(storage) if file is None else storage
        self._window = Window.open(self._group, _span(tensor), where, _described(tensor), keep)
        self._take(tensor, owning)

    def tensor_deregister(self) -> None:
        """Takes the tensor back, when all ranks have come to this: all puts into it have arrived, and no more will."""
        window = self._require()
        self._window = None
        self._tensors.clear()
        self._drop()
        self._settle()
        window.close()

    def get_tensor(self) -> torch.Tensor | None:
        """The tensor that this rank has registered."""
        return self._tensor()

    def get_size(self) -> int:
        """Bytes of the tensor that this rank has registered; 0 if it has registered none."""
        return self._bytes

    @property
    def shape(self) -> list[int]:
        """The shape of this rank's tensor."""
        tensor = self._tensor()
        return [] if tensor is None else list(tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its elements."""
        return self._require_tensor().dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._require_tensor().device

    # --- the others' -----------------------------------------------------------------------------------------------

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        """How a rank's tensor is reached."""
        is_unified = self._require().is_mapped(self._rank(peer_rank))
        kind = TorchCommWinAccessType
        return TorchCommWindowAttr(
            kind.WIN_ACCESS_TYPE_UNIFIED if is_unified else kind.WIN_ACCESS_TYPE_SEPARATE
        )

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """A rank's tensor itself, not a copy: what is written to it that rank sees. Only where memory is shared."""
        window = self._require()
        if self._rank(rank) == self._group.rank:
            return self._require_tensor()
        dtype, shape = self._known(window, rank)
        file = window.file(rank)
        import torch

        if file is None and window.is_mapped(rank):
            return torch.empty(shape, dtype=dtype)
        if file is None:
            raise RuntimeError(
                f"the memory of rank {rank} is not shared with this one, so it can't be mapped"
            )
        from torchcomms._shared_storage import mapped

        number, start = file
        strides = torch.empty(shape, dtype=dtype, device="meta").stride()
        return torch.empty(0, dtype=dtype).set_(mapped(number), start // dtype.itemsize, shape, strides)

    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Writes a tensor into that of a rank, so many elements from its beginning. When it has ended, ``tensor`` may
        be changed again; that it has arrived a signal tells.
        """
        window = self._require()
        _check(tensor, "the tensor to put")
        dtype, _ = self._known(window, self._rank(dst_rank))
        if tensor.dtype != dtype:
            raise RuntimeError(
                f"a tensor of {tensor.dtype} can't be put into rank {dst_rank}'s, which is of {dtype}"
            )
        there = window.size(dst_rank) // dtype.itemsize
        if target_offset_nelems < 0 or target_offset_nelems + tensor.numel() > there:
            raise RuntimeError(
                f"{tensor.numel()} elements from {target_offset_nelems} on are past the end of rank {dst_rank}'s tensor,"
                f" which has {there}"
            )
        offset = target_offset_nelems * dtype.itemsize
        return self._run(
            lambda: window.put(_span(tensor), dst_rank, offset, seconds(timeout), tensor), async_op
        )

    def signal(self, peer_rank: int, async_op: bool, hints: Hints = None, timeout: Timed = None) -> TorchWork:
        """Tells a rank that all that was put into its tensor before is there."""
        window, rank = self._require(), self._rank(peer_rank)
        return self._run(lambda: window.signal(rank), async_op)

    def wait_signal(
        self, peer_rank: int, async_op: bool, hints: Hints = None, timeout: Timed = None
    ) -> TorchWork:
        """Waits for a rank's next signal, and takes it. If it is late, nothing is broken: it may be waited for again."""
        window, rank = self._require(), self._rank(peer_rank)
        return self._run(lambda: window.wait_signal(rank, seconds(timeout)), async_op)

    # --- copies ----------------------------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A window of its own, with a clone of the tensor, which all ranks register together."""
        copy = self._another()
        memo[id(self)] = copy
        tensor = self._tensor()
        if tensor is not None:
            copy.tensor_register(tensor.detach().clone())
        return copy

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, bytes={self._bytes})"

    def _another(self) -> Self:
        return type(self)(self._group, self._shares, self._settle)

    def _take(self, tensor: torch.Tensor, owning: bool) -> None:
        self._tensor = (lambda: tensor) if owning else weakref.ref(tensor)
        self._bytes = tensor.numel() * tensor.element_size()

    def _drop(self) -> None:
        self._tensor, self._bytes = _nothing, 0

    def _run(self, begin: Callable[[], Pending | None], async_op: bool) -> TorchWork:
        from ringfold._error import GroupError

        try:
            work = TorchWork(begin())
        except GroupError as error:
            work = TorchWork(error=error)
        if not async_op:
            work.wait()
        return work

    def _known(self, window: _native.Window, rank: int) -> tuple[torch.dtype, list[int]]:
        """The type and shape of a rank's tensor."""
        known = self._tensors.get(rank)
        if known is None:
            known = self._tensors[rank] = _understood(window.about(rank))
        return known

    def _rank(self, rank: int) -> int:
        if not 0 <= rank < self._group.world:
            raise RuntimeError(f"rank {rank} is out of range: ranks are 0 to {self._group.world - 1}")
        return rank

    def _require(self) -> _native.Window:
        if self._window is None:
            raise RuntimeError("no tensor is registered with the window")
        return self._window

    def _require_none(self) -> None:
        if self._window is not None:
            raise RuntimeError(
                "a tensor is registered with the window already; tensor_deregister() takes it back"
            )

    def _require_tensor(self) -> torch.Tensor:
        tensor = self._tensor()
        if tensor is None:
            raise RuntimeError("no tensor is registered with the window")
        return tensor


class FakeWindow(TorchCommWindow):
    """A window of the backend ``fake``: it holds a tensor, and all else does nothing."""

    def __init__(self) -> None:
        self._tensor, self._bytes = _nothing, 0

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Takes a tensor, and leaves it as it is."""
        if self._tensor() is not None:
            raise RuntimeError(
                "a tensor is registered with the window already; tensor_deregister() takes it back"
            )
        self._take(tensor, owning)

    def tensor_deregister(self) -> None:
        """Lets go of the tensor."""
        self._require_tensor()
        self._drop()

    def get_attr(self, peer_rank: int) -> TorchCommWindowAttr:
        """The only rank's memory is its own."""
        return TorchCommWindowAttr(TorchCommWinAccessType.WIN_ACCESS_TYPE_UNIFIED)

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """The tensor itself."""
        return self._require_tensor()

    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Does nothing."""
        return TorchWork()

    def signal(self, peer_rank: int, async_op: bool, hints: Hints = None, timeout: Timed = None) -> TorchWork:
        """Does nothing."""
        return TorchWork()

    def wait_signal(
        self, peer_rank: int, async_op: bool, hints: Hints = None, timeout: Timed = None
    ) -> TorchWork:
        """Does nothing."""
        return TorchWork()

    def _another(self) -> Self:
        return type(self)()


def _nothing() -> None:
    return None


def _check(tensor: torch.Tensor, what: str) -> None:
    if not tensor.is_cpu:
        raise RuntimeError(f"{what} is on {tensor.device}: windows take tensors in the host's memory")
    if not tensor.is_contiguous():
        raise RuntimeError(f"{what} is not contiguous")
    if tensor.is_conj() or tensor.is_neg():
        raise RuntimeError(
            f"{what} is a conjugated or negated view; resolve_conj() and resolve_neg() make it plain"
        )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _described(tensor: torch.Tensor) -> bytes:
    """What others have to know of a tensor to see it as it is."""
    return json.dumps([str(tensor.dtype).removeprefix("torch."), *tensor.shape]).encode()


def _understood(about: bytes) -> tuple[torch.dtype, list[int]]:
    import torch

    name, *shape = json.loads(about)
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise RuntimeError(f"this torch has no elements of type {name}")
    return dtype, shape
