"""Keeps dynamo out of frames that C++ code of torch calls, as ``torch.compiler.disable`` does, but without loading dynamo."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

C = TypeVar("C", bound=type)


def skip_in_dynamo(function: FunctionType) -> None:
    """Makes dynamo not compile the frame of a function, and the frames that it calls."""
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    function._torchdynamo_disable = True  # type: ignore[attr-defined]


def outside_of_dynamo(kind: C) -> C:
    """A class whose methods are never compiled."""
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            skip_in_dynamo(method)
    return kind
