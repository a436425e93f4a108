"""The hooks of a communicator, and the calls around which they run."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from torchcomms import _hook_args
from torchcomms._call import Call
from torchcomms._op_name import OpName
from torchcomms._removable import Hooks, RemovableHandle
from torchcomms._work import TorchWork

T = TypeVar("T")
PreHook = Callable[[OpName, int, Any], None]
PostHook = Callable[[int, Any], None]
AbortHook = Callable[[], None]

# Numbers the operations of all communicators of this process.
op_ids = itertools.count()


class CommHooks:
    """The part of a communicator that registers and runs hooks."""

    _name: str

    def __init__(self) -> None:
        self._pre: Hooks[PreHook] = Hooks()
        self._post: Hooks[PostHook] = Hooks()
        self._on_abort: Hooks[AbortHook] = Hooks()
        self._has_failed = False

    def register_pre_hook(self, callback: PreHook) -> RemovableHandle:
        """Calls ``callback(op_name, op_id, args)`` before each operation.

        If it raises, the operation does not run, and the caller gets the exception.
        """
        return self._pre.add(callback)

    def register_post_hook(self, callback: PostHook) -> RemovableHandle:
        """Calls ``callback(op_id, args)`` after each operation was issued; after its end if it is synchronous."""
        return self._post.add(callback)

    def register_abort_hook(self, callback: AbortHook) -> RemovableHandle:
        """Calls ``callback()`` when the communicator fails or is aborted, before the error is raised."""
        return self._on_abort.add(callback)

    def _run_hooked(self, call: Call, run: Callable[[], T]) -> T:
        """Runs an operation between its hooks."""
        op_id = self._before(call.op, lambda: _hook_args.of_call(call))
        try:
            result = run()
        except Exception as error:  # the arguments were invalid, and nothing has begun
            self._after(op_id, _hook_args.CollectivePostHookArgs, TorchWork(error=error), error)
            raise
        work = result if isinstance(result, TorchWork) else TorchWork()
        self._after(op_id, _hook_args.CollectivePostHookArgs, work)
        return result

    def _before(self, op: OpName, make_args: Callable[[], Any]) -> int:
        op_id = next(op_ids)
        if self._pre.every:
            args = make_args()
            for hook in self._pre.every:
                hook(op, op_id, args)
        return op_id

    def _after(
        self, op_id: int, kind: Callable[..., Any], result: object, error: BaseException | None = None
    ) -> None:
        if self._post.every:
            args = kind(result, error=error)
            for hook in self._post.every:
                hook(op_id, args)

    def _run_abort_hooks(self) -> None:
        """Runs the abort hooks, once until the next reconfiguration."""
        if self._has_failed:
            return
        self._has_failed = True
        for hook in self._on_abort.every:
            try:
                hook()
            except Exception:  # the other hooks run, and the caller gets the failure itself
                logging.getLogger("torchcomms").exception("abort hook of communicator %r failed", self._name)
