"""The class that torch.distributed calls. Imports torch: only :mod:`torchcomms._backend_wrapper` imports this."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Backend, DebugLevel, ErrorType, ProcessGroup, get_debug_level

from torchcomms._c10d_operations import Operations
from torchcomms._c10d_work import C10dWork, teach_held_works

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

# Before torch 2.12 or so, Python could derive from process groups and not from backends. Torch takes a process group
# where it expects a backend, and uses it as it is. A class that Python may derive from tells how it is made.
IS_BACKEND = "rank" in (Backend.__init__.__doc__ or "")

# Torch's wrapper that checks calls in detail keeps the C++ half of a backend alone; the other half is kept here until the end.
_kept: set[object] = set()


class _Wrapper(Operations):
    """What both kinds have in common."""

    def _set_up(self, comm: TorchComm) -> None:
        self._begin(comm)
        limit = comm.get_options().timeout
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
        self._options = Backend.Options(
            comm.get_backend(), timedelta(seconds=1800.0 if seconds is None else seconds)
        )

    def get_comm(self) -> TorchComm:
        """The communicator that all calls go to."""
        return self._comm

    def name(self) -> str:
        """What the backend is called."""
        return self._comm.get_backend()

    getBackendName = name
    _get_backend_name = name

    @property
    def options(self) -> Any:
        """What it was made with, as c10d's options."""
        return self._options

    def get_mem_allocator(self) -> Any:
        """The allocator for memory that others can reach."""
        return self._comm.mem_allocator

    @property
    def supports_coalescing(self) -> bool:
        """Operations can be issued together."""
        return True

    @property
    def supports_splitting(self) -> bool:
        """Groups can be split off."""
        return True

    @property
    def supports_reconfigure(self) -> bool:
        """Ranks are fixed for torch; ``get_comm().reconfigure()`` is for those who use communicators themselves."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """How long each operation may take from now on."""
        self._comm.set_timeout(timeout)
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def get_error(self) -> Any:
        """Whether something went wrong that nobody was told of; failures are raised, so nothing did."""
        return ErrorType.COMM_ERROR if self._comm.is_aborted() else ErrorType.SUCCESS

    def shutdown(self) -> None:
        """Ends this rank's part, if nobody has. Never raises."""
        _kept.discard(self)
        try:
            if not self._comm._is_final:
                self._comm.finalize()
        except Exception:  # hooks of the user's; torch ends all groups in a row
            return

    def abort(self) -> None:
        """Gives up what is under way, on all ranks. Never raises."""
        try:
            if self._comm.is_abort_supported() and not self._comm._is_final:
                self._comm.abort()
        except Exception:  # there is nothing left to give up
            return

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Connections are there from the beginning."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Those who are not part of a new group have nothing to do for it."""

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
            teach_held_works()
            _teach_process_groups()
            if get_debug_level() == DebugLevel.DETAIL:
                _kept.add(self)

        def split(self, store: Any, ranks: Sequence[int], opts: Any) -> BackendWrapper:
            """The backend of some of the ranks, of which this is one."""
            child = self._split_comm(ranks, getattr(opts, "group_name", ""), getattr(opts, "_timeout", None))
            if child is None:
                raise RuntimeError(
                    f"rank {self._comm.get_rank()} is not one of those that split off: {list(ranks)}"
                )
            return BackendWrapper(child)

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

        # Torch keeps a group's name in its backends, of which this one has none.

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
            # Tensors of all devices are taken. Torch ends a group once for each that is named here.
            return [torch.device("cpu")]

        def _get_backend(self, device: torch.device) -> BackendWrapper:
            return self

        def _start_coalescing(self, device: torch.device) -> None:
            self.start_coalescing()

        def _end_coalescing(self, device: torch.device) -> C10dWork:
            return self.end_coalescing()

        def split_group(  # type: ignore[override]
            self,
            ranks: Sequence[int],
            timeout: timedelta | None = None,
            opts: Any = None,
            group_name: str | None = None,
            group_desc: str | None = None,
        ) -> ProcessGroup | None:
            child = self._split_comm(ranks, group_name or "", timeout)
            if child is None:
                return None
            group: Any = BackendWrapper(child)
            group._set_group_name(group_name or child.get_name())
            group._set_group_desc(group_desc or "undefined")
            wrapped: ProcessGroup = group
            return wrapped


def _teach_process_groups() -> None:
    """Keeps torch from two crashes with backends in Python; process groups over other backends are as they were."""
    register, split = ProcessGroup._register_backend, ProcessGroup.split_group
    if getattr(split, "is_taught", False):
        return
    gloo, custom = ProcessGroup.BackendType.GLOO, ProcessGroup.BackendType.CUSTOM

    # A backend that goes under the name of gloo is taken for torch's own by DDP, in C++ and unseen.
    def _register_backend(self: ProcessGroup, device: Any, kind: Any, backend: Any = None) -> None:
        if kind == gloo and isinstance(backend, BackendWrapper):
            kind = custom
            if self.name() == "gloo":
                self._set_default_backend(custom)
        register(self, device, kind, backend)

    # Ranks outside of a group that splits off are asked for a backend of it too, and "none" is no answer.
    def split_group(
        self: ProcessGroup, ranks: Sequence[int], *arguments: Any, **named: Any
    ) -> ProcessGroup | None:
        is_ours = any(isinstance(self._get_backend(device), BackendWrapper) for device in self._device_types)
        if is_ours and self.rank() not in ranks:
            return None
        return split(self, list(ranks), *arguments, **named)

    split_group.is_taught = True  # type: ignore[attr-defined]
    for ours, theirs in ((_register_backend, register), (split_group, split)):
        ours.__doc__ = theirs.__doc__
        setattr(ProcessGroup, ours.__name__, ours)


BackendWrapper.__name__ = BackendWrapper.__qualname__ = "_BackendWrapper"
