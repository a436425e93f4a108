"""Keeps dynamo out of frames that C++ code of torch calls, as ``torch.compiler.disable`` does, but without loading dynamo."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
    set_eval_frame,
)

C = TypeVar("C", bound=type)


def skip_in_dynamo(function: Callable[..., Any]) -> None:
    """Makes dynamo not compile the frame of a function. The functions that it calls may be compiled."""
    assert isinstance(function, FunctionType)
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
    function._torchdynamo_disable = True  # type: ignore[attr-defined]


def outside_of_dynamo(kind: C) -> C:
    """A class whose public methods, and what they call, are never compiled."""
    for name, method in list(vars(kind).items()):
        # Aliases have the names of their methods.
        if isinstance(method, FunctionType) and not method.__name__.startswith("_"):
            setattr(kind, name, _eager(method))
    return kind


def _eager(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        callback = set_eval_frame(None)
        try:
            return method(*arguments, **named)
        finally:
            set_eval_frame(callback)

    skip_in_dynamo(call)
    return call
