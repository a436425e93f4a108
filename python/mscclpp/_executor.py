"""Execution plans from files: not supported yet."""

from __future__ import annotations

from mscclpp._errors import Error, ErrorCode


class ExecutionPlan:
    """A plan in a file. Not supported yet: the constructor raises an :class:`Error`."""

    def __init__(self, *arguments: object, **options: object) -> None:
        name = type(self).__name__
        raise Error(ErrorCode.ExecutorError, f"unsupported {name}: plans from files are not executed yet")


class Executor(ExecutionPlan):
    """Executes plans. Not supported yet: the constructor raises an :class:`Error`."""
