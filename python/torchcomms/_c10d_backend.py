"""The backend class for torch.distributed. Imports torch: only :mod:`torchcomms._backend_wrapper` imports this."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Backend, DebugLevel, ErrorType, ProcessGroup, get_debug_level

from torchcomms._c10d_operations import Operations
from torchcomms._c10d_work import C10dWork, patch_torch_work
from torchcomms._options import seconds

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm
    from torchcomms._window import TorchCommWindow

# Before torch 2.14, Python classes can derive from ProcessGroup, but not from Backend. Torch accepts a process group in
# place of a backend. Only a class that Python can derive from documents its arguments.
IS_BACKEND = "rank" in (Backend.__init__.__doc__ or "")

# With DebugLevel.DETAIL, torch's wrapper keeps only the C++ half of a backend alive. This keeps the Python half.
_kept: set[object] = set()


class _Wrapper(Operations):
    """The common part of both base classes."""

    def _set_up(self, comm: TorchComm) -> None:
        self._init_operations(comm)
        self._given = comm
        limit = seconds(comm.get_options().timeout)
        timeout = timedelta(seconds=1800.0 if limit is None else limit)
        self._options = Backend.Options(comm.get_backend(), timeout)

    def get_comm(self) -> TorchComm:
        """The communicator that all calls go to."""
        return self._given

    def name(self) -> str:
        """The backend's name."""
        return self._comm.get_backend()

    getBackendName = name
    _get_backend_name = name

    @property
    def options(self) -> Any:
        """Its options, as c10d's."""
        return self._options

    def get_mem_allocator(self) -> Any:
        """The allocator for memory that other ranks can access."""
        return self._comm.get_mem_allocator()

    @property
    def mem_allocator(self) -> Any:
        """The same as :meth:`get_mem_allocator`."""
        return self._comm.get_mem_allocator()

    @property
    def supports_coalescing(self) -> bool:
        """True: operations can be issued together."""
        return True

    @property
    def supports_splitting(self) -> bool:
        """True: groups can be split."""
        return True

    @property
    def supports_reconfigure(self) -> bool:
        """False: ranks are fixed for torch. Programs that use communicators call ``get_comm().reconfigure()``."""
        return False

    @property
    def supports_window(self) -> bool:
        """Whether :meth:`new_window` works."""
        return self._comm._backend.has_windows

    @property
    def supports_shrinking(self) -> bool:
        """False: ``get_comm().reconfigure()`` leaves ranks out."""
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    def new_window(self, tensor: torch.Tensor | None = None) -> TorchCommWindow:
        """A window of the communicator. Torch's own process groups call it, too."""
        return self._comm.new_window(tensor)

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations."""
        self._comm.set_timeout(timeout)
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def get_error(self) -> Any:
        """COMM_ERROR if the communicator was aborted. Other failures are raised."""
        return ErrorType.COMM_ERROR if self._comm.is_aborted() else ErrorType.SUCCESS

    def shutdown(self) -> None:
        """Finalizes the communicator, if it is not finalized. Never raises."""
        _kept.discard(self)
        try:
            if not self._comm._is_final:
                self._comm.finalize()
        except Exception:  # of user hooks; torch shuts down all groups one by one
            return

    def abort(self) -> None:
        """Aborts pending operations on all ranks. Never raises."""
        try:
            if self._comm.is_abort_supported() and not self._comm._is_final:
                self._comm.abort()
        except Exception:  # it is aborted already
            return

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Does nothing: the ranks are connected."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Does nothing: ranks outside of a new group have no part in it."""

    def _get_sequence_number_for_group(self) -> int:
        return self._issued

    def _set_sequence_number_for_group(self) -> None:
        self._issued = 0

    def _split_comm(self, ranks: Sequence[int], name: str, timeout: timedelta | None) -> TorchComm | None:
        if self._comm.get_rank() not in ranks:
            return None
        child = self._comm.split(list(ranks), name, None, timeout)
        if child is not None and timeout is not None:
            child.set_timeout(timeout)
        return child

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._comm!r})"


if IS_BACKEND:

    class BackendWrapper(_Wrapper, Backend):  # type: ignore[misc]  # the stubs name arguments otherwise
        """A communicator as a backend of torch.distributed: ``_BackendWrapper(comm)``."""

        def __init__(self, comm: TorchComm) -> None:
            Backend.__init__(self, comm.get_rank(), comm.get_size())
            self._set_up(comm)
            patch_torch_work()
            _patch_process_groups()
            if get_debug_level() == DebugLevel.DETAIL:
                _kept.add(self)

        def split(self, store: Any, ranks: Sequence[int], opts: Any) -> BackendWrapper:
            """A backend of some of the ranks, including this one."""
            child = self._split_comm(ranks, getattr(opts, "group_name", ""), getattr(opts, "_timeout", None))
            if child is None:
                raise RuntimeError(
                    f"invalid ranks {list(ranks)} in split: rank {self._comm.get_rank()} is not among them"
                )
            return type(self)(child)

else:

    class BackendWrapper(_Wrapper, ProcessGroup):  # type: ignore[misc, no-redef]
        """A communicator as a process group of torch.distributed: ``_BackendWrapper(comm)``."""

        def __init__(self, comm: TorchComm) -> None:
            ProcessGroup.__init__(self, comm.get_rank(), comm.get_size())
            self._set_up(comm)
            self._names = [comm.get_name(), "undefined"]

        def rank(self) -> int:
            return self._comm.get_rank()

        def size(self) -> int:
            return self._comm.get_size()

        getRank = rank
        getSize = size

        # Torch keeps a group's name in its backends; this group has none.

        def _set_group_name(self, name: str) -> None:
            self._names[0] = name

        def _set_group_desc(self, description: str) -> None:
            self._names[1] = description

        def getGroupName(self) -> str:
            return self._names[0]

        def getGroupDesc(self) -> str:
            return self._names[1]

        group_name = property(getGroupName)
        group_desc = property(getGroupDesc)

        @property
        def _device_types(self) -> list[torch.device]:
            # All devices are accepted. Torch shuts the group down once for each device named here.
            return [torch.device("cpu")]

        def _get_backend(self, device: torch.device) -> BackendWrapper:
            return self

        def _start_coalescing(self, device: torch.device) -> None:
            self.start_coalescing()

        def _end_coalescing(self, device: torch.device) -> C10dWork:
            return self.end_coalescing()

        def split_group(
            self,
            ranks: Sequence[int],
            timeout: timedelta | None = None,
            opts: Any = None,
            group_name: str | None = None,
            group_desc: str | None = None,
            device_types: Any = None,
        ) -> ProcessGroup | None:
            # One communicator serves all device types.
            child = self._split_comm(ranks, group_name or "", timeout)
            if child is None:
                return None
            group: Any = type(self)(child)
            group._set_group_name(group_name or child.get_name())
            group._set_group_desc(group_desc or "undefined")
            wrapped: ProcessGroup = group
            return wrapped


def backend_of(group: ProcessGroup, device: str | None = None) -> BackendWrapper | None:
    """The backend of a process group for this type of device; None if it is not ours.

    By default it is that of an accelerator, if the group and this host have one.
    """
    if isinstance(group, BackendWrapper):
        return group
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    first = "cpu" if accelerator is None else accelerator.type
    types = sorted({one.type for one in group._device_types}, key=lambda one: one != first)
    wanted = device if device is not None else next(iter(types), None)
    if wanted is None or wanted not in types:
        return None
    backend = group._get_backend(torch.device(wanted))
    # With DebugLevel.DETAIL, torch wraps it.
    backend = getattr(backend, "wrapped_pg", backend)
    return backend if isinstance(backend, BackendWrapper) else None


def _patch_process_groups() -> None:
    """Avoids two crashes of torch with Python backends, and adds their windows.

    Process groups with other backends are not changed.
    """
    register, split = ProcessGroup._register_backend, ProcessGroup.split_group
    new_torch_window = getattr(ProcessGroup, "new_window", None)
    if getattr(split, "is_patched", False):
        return
    gloo, custom = ProcessGroup.BackendType.GLOO, ProcessGroup.BackendType.CUSTOM

    # DDP's C++ code assumes that a backend of type GLOO is torch's own.
    def _register_backend(self: ProcessGroup, device: Any, kind: Any, backend: Any = None) -> None:
        if kind == gloo and isinstance(backend, BackendWrapper):
            kind = custom
            if self.name() == "gloo":
                self._set_default_backend(custom)
        register(self, device, kind, backend)

    # Torch asks also ranks outside of the new group for a backend, and crashes on None.
    def split_group(
        self: ProcessGroup, ranks: Sequence[int], *arguments: Any, **named: Any
    ) -> ProcessGroup | None:
        is_ours = any(isinstance(self._get_backend(device), BackendWrapper) for device in self._device_types)
        if is_ours and self.rank() not in ranks:
            return None
        return split(self, list(ranks), *arguments, **named)

    # Torch's own windows cannot be made in Python.
    def new_window(self: ProcessGroup, tensor: torch.Tensor | None = None) -> Any:
        backend = backend_of(self, tensor.device.type if tensor is not None else None)
        if backend is not None:
            return backend.new_window(tensor)
        if new_torch_window is None:
            raise RuntimeError("unsupported by this version of torch: windows of a process group")
        return new_torch_window(self, tensor)

    split_group.is_patched = True  # type: ignore[attr-defined]
    for ours, theirs in ((_register_backend, register), (split_group, split), (new_window, new_torch_window)):
        ours.__doc__ = theirs.__doc__
        setattr(ProcessGroup, ours.__name__, ours)


BackendWrapper.__name__ = BackendWrapper.__qualname__ = "_BackendWrapper"
