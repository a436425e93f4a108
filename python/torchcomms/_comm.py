"""A communicator: the ranks of a job and their common operations."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchcomms import _compile, _hook_args, _watcher
from torchcomms._abort import AbortInfo, AbortReason, info_of
from torchcomms._allocator import get_mem_allocator
from torchcomms._backend import Backend
from torchcomms._batch import BatchSendRecv, P2POp
from torchcomms._call import Call
from torchcomms._comm_hooks import CommHooks, op_ids
from torchcomms._comm_operations import CommOperations, OptionalHints, Options
from torchcomms._hints import check_call_hints, check_hints, with_hints
from torchcomms._op_name import OpName
from torchcomms._options import BatchP2POptions, CommOptions, Hints, TimeoutLike, chosen, seconds
from torchcomms._persistent import AllGatherHandle
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._reduce_op import ReduceOp
    from torchcomms._window import TorchCommWindow

DEFAULT_TIMEOUT_S = 600.0


class TorchComm(CommOperations, CommHooks):
    """A communicator. Made by :func:`torchcomms.new_comm` or :meth:`split`.

    All ranks make the same calls in the same order. With ``async_op=True`` a call returns at once, and its work is waited for
    later. ``timeout`` (a timedelta or seconds) limits one call.
    """

    _graph_handle: str
    """Its name in graphs, if :mod:`torchcomms.functional` is enabled."""

    def __init__(self, backend: Backend, device: torch.device, name: str, options: CommOptions) -> None:
        super().__init__()
        self._backend = backend
        self._device = device
        self._name = name
        self._options = options
        self._timeout = seconds(options.timeout) or DEFAULT_TIMEOUT_S
        self._is_final = False
        # Whether this rank has called abort(), so that failures are expected.
        self._was_aborted = False
        self._abort_info: AbortInfo | None = None
        self._ends_process = bool(options.abort_process_on_timeout_or_error)
        self._device_watch: _watcher.DeviceWatch | None = None
        _compile.enroll_comm(self)

    # --- properties ------------------------------------------------------------------------------------------------

    def get_rank(self) -> int:
        """This process's rank; −1 with ``enable_reconfigure`` before the first :meth:`reconfigure`."""
        return self._backend.rank

    def get_size(self) -> int:
        """The number of ranks."""
        return self._backend.size

    def get_name(self) -> str:
        """The communicator's name."""
        return self._name

    def get_device(self) -> torch.device:
        """The device of its tensors."""
        return self._device

    def get_options(self) -> CommOptions:
        """The options that it was made with."""
        return self._options

    def get_backend(self) -> str:
        """The name of its backend."""
        return self._backend.name

    def get_backend_version(self) -> str:
        """The version of its backend."""
        return self._backend.version

    def get_backend_impl(self) -> Any:
        """The backend itself."""
        return self._backend.impl

    def unsafe_get_backend(self) -> Any:
        """Deprecated: the same as :meth:`get_backend_impl`."""
        text = "unsafe_get_backend() is deprecated: use get_backend_impl()"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return self.get_backend_impl()

    def get_mem_allocator(self) -> Any:
        """The allocator for memory that other ranks can access; see :func:`torchcomms.get_mem_allocator`."""
        return get_mem_allocator(self.get_backend())

    @property
    def mem_allocator(self) -> Any:
        """The same as :meth:`get_mem_allocator`."""
        return self.get_mem_allocator()

    # --- batches, persistent all-gather, windows -------------------------------------------------------------------

    def batch_op_create(self) -> BatchSendRecv:
        """An empty batch of sends and receives that are issued together."""
        return BatchSendRecv(self)

    def all_gather_p_init(
        self,
        output: torch.Tensor,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> AllGatherHandle:
        """Prepares repeated all-gathers into ``output``."""
        self._require_open()
        call = Call(OpName.all_gather_p_init, False, *chosen(hints, timeout, options), None, output)
        if call.hints:
            check_call_hints(call.hints, call.op.name)
        return self._run_hooked(call, lambda: AllGatherHandle(self, output))

    def all_gather_p_exec(
        self,
        handle: AllGatherHandle,
        input: torch.Tensor,
        async_op: bool = False,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Runs a prepared all-gather."""
        output = handle.output_for(self)
        call = Call(OpName.all_gather_p_exec, async_op, *chosen(hints, timeout, options), input, output)
        return self._issue(call)

    def all_gather_p_free(self, handle: AllGatherHandle) -> None:
        """Frees a prepared all-gather."""
        call = Call(OpName.all_gather_p_free, False, output=handle.output_for(self))
        self._run_hooked(call, handle.free)

    def new_window(self, tensor: torch.Tensor | None = None) -> TorchCommWindow:
        """A window for one-sided puts. A given tensor is registered at once, which all ranks must do."""
        self._require_open()
        op_id = self._before(OpName.new_window, lambda: _hook_args.NewWindowPreHookArgs(False))
        try:
            window = self._backend.new_window()
            if tensor is not None:
                window.tensor_register(tensor)
            _compile.enroll_window(window)
        except Exception as error:
            self._after(op_id, _hook_args.NewWindowPostHookArgs, None, error)
            raise
        if self._ends_process:
            window._supervise = self._supervise_window
        self._after(op_id, _hook_args.NewWindowPostHookArgs, window)
        return window

    def tensor_register(self, tensor: torch.Tensor, *_: Any) -> None:
        """Prepares the memory of a CUDA tensor, so that the first large operation on it is as fast as later ones.

        A hint: memory is registered by itself with its first use. Not collective; the other ranks need not call it.
        """
        self._require_open()
        register = getattr(self._backend, "register_tensor", None)
        if register is not None:
            register(tensor)

    def tensor_deregister(self, tensor: torch.Tensor, *_: Any) -> None:
        """Makes the other ranks close the memory of a CUDA tensor, which can then be freed. CUDA graphs keep theirs."""
        self._require_open()
        deregister = getattr(self._backend, "deregister_tensor", None)
        if deregister is not None:
            deregister(tensor)

    # --- other communicators ---------------------------------------------------------------------------------------

    def split(
        self, ranks: list[int], name: str = "", hints: Hints = None, timeout: TimeoutLike = None
    ) -> TorchComm | None:
        """A communicator of some of the ranks. A rank's new number is its index in the list.

        Only these ranks have to call it. Others may call it with an empty list, and get None. ``hints`` are added to those of
        this communicator.
        """
        self._require_open()
        ranks = list(ranks)
        op_id = self._before(
            OpName.split, lambda: _hook_args.SplitPreHookArgs(False, ranks, name, timeout=timeout)
        )
        child = None
        try:
            if ranks:
                check_hints(hints)
                full_name = f"{name or self._name}_{min(ranks)}"
                options = replace(with_hints(self._options, hints), name=full_name)
                backend = self._backend.split(ranks, full_name, seconds(timeout), options)
                if backend is not None:
                    child = TorchComm(backend, self._device, full_name, options)
                    child._timeout = self._timeout
        except Exception as error:
            self._after(op_id, _hook_args.SplitPostHookArgs, None, error)
            raise
        self._after(op_id, _hook_args.SplitPostHookArgs, child)
        return child

    # --- faults ----------------------------------------------------------------------------------------------------

    def get_init_handle(self) -> str:
        """The handle that names this rank in :meth:`reconfigure`. It never changes."""
        return self._backend.init_handle()

    def reconfigure(
        self,
        uuid: int | str,
        init_handles: list[str] | set[str],
        timeout: TimeoutLike = None,
        hints: Hints = None,
    ) -> TorchWork:
        """Becomes a communicator of the ranks with these handles, which all call this with the same ``uuid``.

        A list fixes the order of ranks; with a set the order is chosen. Ranks that are not among them call nothing. ``hints``
        are set as by :meth:`set_hints`.
        """
        self._require_open()
        if hints:
            self.set_hints(hints)
        work = self._backend.reconfigure(uuid, init_handles, seconds(timeout))
        self._has_failed = self._was_aborted = False
        self._abort_info = None
        return work

    def abort(self, reason: AbortReason = AbortReason.ABORTED, context: str = "") -> None:
        """Aborts pending operations on all ranks. Afterwards only :meth:`reconfigure` and :meth:`finalize` work.

        ``reason`` and ``context`` are what :meth:`get_abort_info` returns on this rank.
        """
        self._abort_info = AbortInfo(AbortReason(reason), context)
        self._was_aborted = True
        self._backend.abort()
        self._run_abort_hooks()

    def get_abort_info(self) -> AbortInfo:
        """Why it was aborted, or has failed; the reason is ``NONE`` if it works."""
        failure = getattr(self._backend, "failure", None)
        return self._abort_info or info_of(failure() if failure is not None else None)

    def is_abort_supported(self) -> bool:
        """Whether :meth:`abort` can be called."""
        return self._backend.can_abort()

    def is_aborted(self) -> bool:
        """Whether it was aborted, here or on another rank."""
        return self._backend.is_aborted()

    # --- settings and end ------------------------------------------------------------------------------------------

    def set_timeout(self, timeout: TimeoutLike) -> None:
        """Sets the timeout of later operations."""
        given = seconds(timeout)
        if given is None:
            raise TypeError("invalid timeout None: must be a timedelta or a number of seconds")
        self._backend.set_timeout(given)
        self._timeout = given

    def set_hints(self, hints: dict[str, str]) -> None:
        """Sets hints, beside those that were set before. Warns of unknown ones.

        A tag is used by later sends and receives that have none; a stream priority by later asynchronous operations on CUDA
        tensors; a transport by later splits, windows and reconfigurations.
        """
        check_hints(hints)
        options = with_hints(self._options, hints)
        self._options.hints = options.hints
        self._options.is_high_priority_stream = options.is_high_priority_stream
        self._backend.set_hints(hints)

    def finalize(self) -> None:
        """Ends it on this rank without waiting. Other ranks still get what was issued before."""
        self._require_open()
        if not self._backend.is_initialized:
            raise RuntimeError(
                f"finalizing communicator {self._name!r} failed: it was never initialised; call reconfigure() first"
            )
        for hook in self._pre.every:
            hook(OpName.finalize, -1, _hook_args.FinalizePreHookArgs(False))
        self._is_final = True
        self._backend.finalize()
        for post_hook in self._post.every:
            post_hook(-1, _hook_args.FinalizePostHookArgs())

    def __copy__(self) -> TorchComm:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchComm:
        memo[id(self)] = self
        return self

    def __del__(self) -> None:
        if getattr(self, "_is_final", True):
            return
        self._is_final = True
        try:
            self._backend.finalize()
            if self._backend.is_initialized:
                text = f"communicator {self._name!r} was dropped without finalize()"
                warnings.warn(text, ResourceWarning, stacklevel=2)
        except Exception:  # the interpreter may be exiting, and no caller could catch it
            return

    def __repr__(self) -> str:
        return (
            f"TorchComm(name={self._name!r}, backend={self.get_backend()!r}, rank={self.get_rank()}, "
            f"size={self.get_size()}, device={self._device!s})"
        )

    # --- issuing ---------------------------------------------------------------------------------------------------

    def _issue(self, call: Call) -> TorchWork:
        if self._is_final:
            self._require_open()
        began = time.monotonic() if self._ends_process else 0.0
        if not self._pre.every and not self._post.every:
            next(op_ids)
            work = self._backend.issue(call)
        else:
            work = self._run_hooked(call, lambda: self._backend.issue(call))
        return self._attended(work, call.op, began, call.async_op)

    def all_reduce(
        self,
        tensor: torch.Tensor,
        op: ReduceOp,
        async_op: bool,
        hints: OptionalHints = None,
        timeout: TimeoutLike = None,
        options: Options = None,
    ) -> TorchWork:
        """Reduces the tensors of all ranks. Every rank gets the result, the same bits everywhere."""
        now = getattr(self._backend, "all_reduce_now", None)
        if (
            now is None
            or hints
            or timeout is not None
            or options is not None
            or self._is_final
            or self._pre.every
            or self._post.every
        ):
            return super().all_reduce(tensor, op, async_op, hints, timeout, options)
        began = time.monotonic() if self._ends_process else 0.0
        work: TorchWork | None = now(tensor, op, async_op)
        if work is None:
            return super().all_reduce(tensor, op, async_op)
        next(op_ids)
        if not (self._ends_process or async_op):
            return work
        return self._attended(work, OpName.all_reduce, began, async_op)

    def _attended(self, work: TorchWork, op: OpName, began: float, async_op: bool) -> TorchWork:
        """A work whose failure is handled. It is waited for unless it is asynchronous."""
        if self._ends_process:
            self._supervise(work, op, began, async_op)
        else:
            work._on_error = self._handle_failure
        if not async_op:
            work.wait()
        return work

    def _issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork:
        self._require_open()
        op_id = self._before(
            OpName.batch_op_issue,
            lambda: _hook_args.BatchOpIssuePreHookArgs(async_op, len(ops), ops, timeout=options.timeout),
        )
        began = time.monotonic()
        try:
            work = self._backend.issue_batch(ops, async_op, options)
        except Exception as error:
            self._after(op_id, _hook_args.BatchOpIssuePostHookArgs, TorchWork(error=error), error)
            raise
        if self._ends_process:
            self._supervise(work, OpName.batch_op_issue, began, async_op)
        else:
            work._on_error = self._handle_failure
        self._after(op_id, _hook_args.BatchOpIssuePostHookArgs, work)
        if not async_op:
            work.wait()
        return work

    def _require_open(self) -> None:
        if self._is_final:
            raise RuntimeError(f"communicator {self._name!r} was finalized")

    def _handle_failure(self, error: BaseException) -> None:
        """Called when an operation has failed, before its error is raised."""
        self._run_abort_hooks()

    def _supervise(self, work: TorchWork, op: OpName, began: float, async_op: bool) -> None:
        """Ends the process if the operation fails, also if no thread waits for it."""
        work._on_error = failed = _watcher.FailedOperation(self, op.name, began)
        if self._backend.has_device:
            if self._device_watch is None:
                self._device_watch = _watcher.DeviceWatch(self)
            self._device_watch.add(op.name, began)
        if not async_op or work._is_on_device:
            return
        if work._error is not None:
            failed(work._error)
        elif work._pending is not None and self._backend.works_end_unattended:
            _watcher.watch_work(work)

    def _supervise_window(self, work: TorchWork, op: str, began: float) -> None:
        """The same for an operation of a window."""
        work._on_error = _watcher.FailedWindowOperation(self, f"{op} of a window", began)
        if work._error is not None or work._pending is not None:
            _watcher.watch_work(work)
