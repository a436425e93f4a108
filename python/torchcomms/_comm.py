"""A communicator: the ranks of a job, and what they do together."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from torchcomms import _hook_args
from torchcomms._backend import Backend
from torchcomms._batch import BatchSendRecv, P2POp
from torchcomms._call import Call
from torchcomms._op_name import OpName
from torchcomms._options import BatchP2POptions, CommOptions, seconds
from torchcomms._persistent import AllGatherHandle
from torchcomms._reduce_op import ReduceOp
from torchcomms._removable import Hooks, RemovableHandle
from torchcomms._work import TorchWork

if TYPE_CHECKING:
    import torch

    from torchcomms._window import TorchCommWindow

T = TypeVar("T")
PreHook = Callable[[OpName, int, Any], None]
PostHook = Callable[[int, Any], None]
AbortHook = Callable[[], None]
Timed = timedelta | float | None
Hints = dict[str, str] | None

DEFAULT_TIMEOUT_S = 600.0

# Counts the operations of this process, whichever communicator they belong to.
_op_ids = itertools.count()


class TorchComm:
    """A communicator. Made by :func:`torchcomms.new_comm`, or by :meth:`split`.

    All ranks make the same calls in the same order. Each takes ``async_op``: if true, the call returns at once, and
    the work it returns is waited for later. ``timeout`` (a timedelta or seconds) bounds one call.
    """

    def __init__(self, backend: Backend, device: torch.device, name: str, options: CommOptions) -> None:
        self._backend = backend
        self._device = device
        self._name = name
        self._options = options
        self._limit = seconds(options.timeout) or DEFAULT_TIMEOUT_S
        self._is_final = False
        self._pre: Hooks[PreHook] = Hooks()
        self._post: Hooks[PostHook] = Hooks()
        self._on_abort: Hooks[AbortHook] = Hooks()
        self._has_failed = False

    # --- who we are ------------------------------------------------------------------------------------------------

    def get_rank(self) -> int:
        """This process's number; −1 before the first :meth:`reconfigure` of a communicator that waits for one."""
        return self._backend.rank

    def get_size(self) -> int:
        """How many ranks there are."""
        return self._backend.size

    def get_name(self) -> str:
        """What the communicator is called."""
        return self._name

    def get_device(self) -> torch.device:
        """Where its tensors are."""
        return self._device

    def get_options(self) -> CommOptions:
        """What it was made with."""
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

    @property
    def mem_allocator(self) -> Any:
        """The allocator for memory that others can reach; see :func:`torchcomms.get_mem_allocator`."""
        from torchcomms._allocator import get_mem_allocator

        return get_mem_allocator(self.get_backend())

    # --- one to one ------------------------------------------------------------------------------------------------

    def send(
        self, tensor: torch.Tensor, dst: int, async_op: bool, hints: Hints = None, timeout: Timed = None
    ) -> TorchWork:
        """Sends a tensor to the rank ``dst``."""
        return self._issue(Call(OpName.send, async_op, tensor, None, dst, hints=hints, timeout=timeout))

    def recv(
        self, tensor: torch.Tensor, src: int, async_op: bool, hints: Hints = None, timeout: Timed = None
    ) -> TorchWork:
        """Receives into a tensor what the rank ``src`` sends."""
        return self._issue(Call(OpName.recv, async_op, None, tensor, src, hints=hints, timeout=timeout))

    def batch_op_create(self) -> BatchSendRecv:
        """Begins a batch of sends and receives that are issued together."""
        return BatchSendRecv(self)

    # --- everyone --------------------------------------------------------------------------------------------------

    def broadcast(
        self, tensor: torch.Tensor, root: int, async_op: bool, hints: Hints = None, timeout: Timed = None
    ) -> TorchWork:
        """Everyone ends with the root's tensor."""
        return self._issue(
            Call(OpName.broadcast, async_op, tensor, tensor, root, hints=hints, timeout=timeout)
        )

    def all_reduce(
        self, tensor: torch.Tensor, op: ReduceOp, async_op: bool, hints: Hints = None, timeout: Timed = None
    ) -> TorchWork:
        """Everyone ends with the combination of everyone's tensors, the same bits on every rank."""
        return self._issue(
            Call(OpName.all_reduce, async_op, tensor, tensor, reduce=op, hints=hints, timeout=timeout)
        )

    def reduce(
        self,
        tensor: torch.Tensor,
        root: int,
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """The root ends with the combination of everyone's tensors; the others' stay as they are."""
        return self._issue(
            Call(OpName.reduce, async_op, tensor, tensor, root, op, hints=hints, timeout=timeout)
        )

    def all_gather(
        self,
        tensor_list: list[torch.Tensor],
        tensor: torch.Tensor,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Everyone ends with everyone's tensors, one in each of the list."""
        return self._issue(
            Call(OpName.all_gather, async_op, tensor, tensor_list, hints=hints, timeout=timeout)
        )

    def all_gather_v(
        self,
        tensor_list: list[torch.Tensor],
        tensor: torch.Tensor,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """As :meth:`all_gather`, where the ranks' tensors have different sizes."""
        return self._issue(
            Call(OpName.all_gather_v, async_op, tensor, tensor_list, hints=hints, timeout=timeout)
        )

    def all_gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Everyone ends with everyone's tensors, one after the other in ``output``."""
        return self._issue(
            Call(OpName.all_gather_single, async_op, input, output, hints=hints, timeout=timeout)
        )

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input_list: list[torch.Tensor],
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Rank r ends with the combination of everyone's ``input_list[r]``."""
        return self._issue(
            Call(OpName.reduce_scatter, async_op, input_list, output, reduce=op, hints=hints, timeout=timeout)
        )

    def reduce_scatter_v(
        self,
        output: torch.Tensor,
        input_list: list[torch.Tensor],
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """As :meth:`reduce_scatter`, where the ranks' parts have different sizes."""
        return self._issue(
            Call(
                OpName.reduce_scatter_v, async_op, input_list, output, reduce=op, hints=hints, timeout=timeout
            )
        )

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: ReduceOp,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Rank r ends with part r of the combination of everyone's ``input``."""
        return self._issue(
            Call(
                OpName.reduce_scatter_single,
                async_op,
                input,
                output,
                reduce=op,
                hints=hints,
                timeout=timeout,
            )
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Part r of ``input`` goes to rank r, and part r of ``output`` comes from it; all parts have one size."""
        return self._issue(
            Call(OpName.all_to_all_single, async_op, input, output, hints=hints, timeout=timeout)
        )

    def all_to_all_v_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """As :meth:`all_to_all_single`, where parts have the sizes given, in rows of the first dimension."""
        return self._issue(
            Call(
                OpName.all_to_all_v_single,
                async_op,
                input,
                output,
                input_split_sizes=input_split_sizes,
                output_split_sizes=output_split_sizes,
                hints=hints,
                timeout=timeout,
            )
        )

    def all_to_all(
        self,
        output_tensor_list: list[torch.Tensor],
        input_tensor_list: list[torch.Tensor],
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """``input_tensor_list[r]`` goes to rank r, and ``output_tensor_list[r]`` comes from it."""
        return self._issue(
            Call(
                OpName.all_to_all,
                async_op,
                input_tensor_list,
                output_tensor_list,
                hints=hints,
                timeout=timeout,
            )
        )

    def barrier(self, async_op: bool, hints: Hints = None, timeout: Timed = None) -> TorchWork:
        """Waits until all ranks have come."""
        return self._issue(Call(OpName.barrier, async_op, hints=hints, timeout=timeout))

    def scatter(
        self,
        output_tensor: torch.Tensor,
        input_tensor_list: list[torch.Tensor],
        root: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """Rank r ends with the root's ``input_tensor_list[r]``. The others' lists are not looked at."""
        return self._issue(
            Call(
                OpName.scatter, async_op, input_tensor_list, output_tensor, root, hints=hints, timeout=timeout
            )
        )

    def gather(
        self,
        output_tensor_list: list[torch.Tensor],
        input_tensor: torch.Tensor,
        root: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """The root ends with everyone's tensors, one in each of its list. The others' lists are not looked at."""
        return self._issue(
            Call(
                OpName.gather, async_op, input_tensor, output_tensor_list, root, hints=hints, timeout=timeout
            )
        )

    def gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        root: int,
        async_op: bool,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """The root ends with everyone's tensors, one after the other in ``output``."""
        return self._issue(
            Call(OpName.gather_single, async_op, input, output, root, hints=hints, timeout=timeout)
        )

    # --- persistent all-gather -------------------------------------------------------------------------------------

    def all_gather_p_init(
        self, output: torch.Tensor, hints: Hints = None, timeout: Timed = None
    ) -> AllGatherHandle:
        """Prepares all-gathers into ``output`` that are repeated often."""
        self._require_use()
        call = Call(OpName.all_gather_p_init, False, None, output, hints=hints, timeout=timeout)
        return self._hooked(call, lambda: AllGatherHandle(self, output))

    def all_gather_p_exec(
        self,
        handle: AllGatherHandle,
        input: torch.Tensor,
        async_op: bool = False,
        hints: Hints = None,
        timeout: Timed = None,
    ) -> TorchWork:
        """One all-gather of those that were prepared."""
        output = handle.output_for(self)
        return self._issue(
            Call(OpName.all_gather_p_exec, async_op, input, output, hints=hints, timeout=timeout)
        )

    def all_gather_p_free(self, handle: AllGatherHandle) -> None:
        """Lets go of what was prepared."""
        call = Call(OpName.all_gather_p_free, False, None, handle.output_for(self))
        self._hooked(call, handle.free)

    # --- windows ---------------------------------------------------------------------------------------------------

    def new_window(self, tensor: torch.Tensor | None = None) -> TorchCommWindow:
        """A window for one-sided puts; with a tensor, it is registered at once, which all ranks have to do."""
        self._require_use()
        op_id = self._before(OpName.new_window, lambda: _hook_args.NewWindowPreHookArgs(False))
        try:
            window = self._backend.new_window()
            if tensor is not None:
                window.tensor_register(tensor)
        except Exception as error:
            self._after(op_id, _hook_args.NewWindowPostHookArgs, None, error)
            raise
        self._after(op_id, _hook_args.NewWindowPostHookArgs, window)
        return window

    def tensor_register(self, tensor: torch.Tensor, *_: Any) -> None:
        """Accepted for those who register memory with other backends; nothing has to be done for it here."""
        self._require_use()

    def tensor_deregister(self, tensor: torch.Tensor, *_: Any) -> None:
        """The counterpart of :meth:`tensor_register`."""
        self._require_use()

    # --- other communicators ---------------------------------------------------------------------------------------

    def split(
        self, ranks: list[int], name: str = "", hints: Hints = None, timeout: Timed = None
    ) -> TorchComm | None:
        """A communicator of some of the ranks, which alone call this (others may, with an empty list, and get None).
        A rank's new number is its place in the list.
        """
        self._require_use()
        ranks = list(ranks)
        op_id = self._before(
            OpName.split, lambda: _hook_args.SplitPreHookArgs(False, ranks, name, timeout=timeout)
        )
        child = None
        try:
            if ranks:
                full_name = f"{name or self._name}_{min(ranks)}"
                backend = self._backend.split(ranks, full_name, seconds(timeout))
                if backend is not None:
                    inherited = dict(self._options.hints) if self._options.hints else None
                    options = replace(self._options, name=full_name, hints=inherited)
                    child = TorchComm(backend, self._device, full_name, options)
                    child._limit = self._limit
        except Exception as error:
            self._after(op_id, _hook_args.SplitPostHookArgs, None, error)
            raise
        self._after(op_id, _hook_args.SplitPostHookArgs, child)
        return child

    # --- faults ----------------------------------------------------------------------------------------------------

    def get_init_handle(self) -> str:
        """What others need to name this rank in :meth:`reconfigure`. It stays the same."""
        return self._backend.init_handle()

    def reconfigure(
        self,
        uuid: int | str,
        init_handles: list[str] | set[str],
        timeout: Timed = None,
        hints: Hints = None,
    ) -> TorchWork:
        """Becomes a communicator of those whose handles are given; all of them call this with the same ``uuid``. A list
        fixes the order of ranks, a set leaves it to us. Whoever is not among them calls nothing.
        """
        if self._is_final:
            raise RuntimeError(f"communicator {self._name!r} was finalized")
        work = self._backend.reconfigure(uuid, init_handles, seconds(timeout))
        self._has_failed = False
        return work

    def abort(self) -> None:
        """Gives up what is under way, on all ranks. Afterwards only :meth:`reconfigure` and :meth:`finalize` help."""
        self._backend.abort()
        self._run_abort_hooks()

    def is_abort_supported(self) -> bool:
        """Whether :meth:`abort` can be called."""
        return self._backend.can_abort()

    def is_aborted(self) -> bool:
        """Whether it was given up, here or elsewhere."""
        return self._backend.is_aborted()

    # --- settings, hooks, end --------------------------------------------------------------------------------------

    def set_timeout(self, timeout: timedelta | float) -> None:
        """How long each operation may take from now on."""
        limit = seconds(timeout)
        if limit is None:
            raise TypeError("a timeout is expected, not None")
        self._backend.set_timeout(limit)
        self._limit = limit

    def set_hints(self, hints: dict[str, str]) -> None:
        """Takes hints for later operations. Those that are not known are warned of."""
        from torchcomms._hints import check_hints

        check_hints(hints)
        self._options.hints = {**(self._options.hints or {}), **hints}

    def register_pre_hook(self, callback: PreHook) -> RemovableHandle:
        """Has ``callback(op_name, op_id, args)`` called before each operation. What it raises is raised to the
        caller, and the operation does not run."""
        return self._pre.add(callback)

    def register_post_hook(self, callback: PostHook) -> RemovableHandle:
        """Has ``callback(op_id, args)`` called after each operation was issued (and, if it is synchronous, ended)."""
        return self._post.add(callback)

    def register_abort_hook(self, callback: AbortHook) -> RemovableHandle:
        """Has ``callback()`` called when the communicator fails or is given up, before the error is raised."""
        return self._on_abort.add(callback)

    def finalize(self) -> None:
        """Ends it on this rank. Nobody is waited for, and others get what was issued before."""
        if self._is_final:
            raise RuntimeError(f"communicator {self._name!r} was finalized before")
        if not self._backend.is_initialized:
            raise RuntimeError(
                f"communicator {self._name!r} was never initialised: nobody has called reconfigure()"
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
                warnings.warn(
                    f"communicator {self._name!r} was dropped without finalize()",
                    ResourceWarning,
                    stacklevel=2,
                )
        except Exception:  # the interpreter may be ending, and nobody could catch it
            return

    def __repr__(self) -> str:
        return (
            f"TorchComm(name={self._name!r}, backend={self.get_backend()!r}, rank={self.get_rank()}, "
            f"size={self.get_size()}, device={self._device!s})"
        )

    # --- the road --------------------------------------------------------------------------------------------------

    def _issue(self, call: Call) -> TorchWork:
        """The road of every operation on tensors."""
        if self._is_final:
            self._require_use()
        if not self._pre.every and not self._post.every:
            next(_op_ids)
            work = self._backend.issue(call)
        else:
            work = self._hooked(call, lambda: self._backend.issue(call))
        work._on_error = self._note_failure
        if not call.async_op:
            work.wait()
        return work

    def _issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork:
        self._require_use()
        op_id = self._before(
            OpName.batch_op_issue,
            lambda: _hook_args.BatchOpIssuePreHookArgs(async_op, len(ops), ops, timeout=options.timeout),
        )
        try:
            work = self._backend.issue_batch(ops, async_op, options)
        except Exception as error:
            self._after(op_id, _hook_args.BatchOpIssuePostHookArgs, TorchWork(error=error), error)
            raise
        work._on_error = self._note_failure
        self._after(op_id, _hook_args.BatchOpIssuePostHookArgs, work)
        if not async_op:
            work.wait()
        return work

    def _hooked(self, call: Call, run: Callable[[], T]) -> T:
        op_id = self._before(call.op, lambda: _hook_args.of_call(call))
        try:
            result = run()
        except Exception as error:  # the arguments were refused, and nothing has begun
            self._after(op_id, _hook_args.CollectivePostHookArgs, TorchWork(error=error), error)
            raise
        work = result if isinstance(result, TorchWork) else TorchWork()
        self._after(op_id, _hook_args.CollectivePostHookArgs, work)
        return result

    def _before(self, op: OpName, args: Callable[[], Any]) -> int:
        op_id = next(_op_ids)
        if self._pre.every:
            told = args()
            for hook in self._pre.every:
                hook(op, op_id, told)
        return op_id

    def _after(
        self, op_id: int, kind: Callable[..., Any], result: object, error: BaseException | None = None
    ) -> None:
        if self._post.every:
            told = kind(result, error=error)
            for hook in self._post.every:
                hook(op_id, told)

    def _require_use(self) -> None:
        if self._is_final:
            raise RuntimeError(f"communicator {self._name!r} was finalized")

    def _note_failure(self, error: BaseException) -> None:
        """An operation has failed, and its error is about to be raised."""
        self._run_abort_hooks()
        if self._options.abort_process_on_timeout_or_error:
            print(
                f"torchcomms: {self._name!r} failed, so this process ends: {error}",
                file=sys.stderr,
                flush=True,
            )
            os.kill(os.getpid(), signal.SIGABRT)

    def _run_abort_hooks(self) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        for hook in self._on_abort.every:
            try:
                hook()
            except Exception:  # the other hooks run, and the user hears of the failure itself
                logging.getLogger("torchcomms").exception(
                    "an abort hook of communicator %r failed", self._name
                )
