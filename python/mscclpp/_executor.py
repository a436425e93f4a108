"""Plans of collectives from files: later."""

from __future__ import annotations

from mscclpp._errors import Error, ErrorCode


def _later(what: str) -> Error:
    return Error(ErrorCode.ExecutorError, f"{what}: plans from files are not executed yet")


class ExecutionPlan:
    """A plan in a file. Not there yet: making one raises an :class:`Error`."""

    def __init__(self, *arguments: object, **options: object) -> None:
        raise _later("ExecutionPlan")


class Executor:
    """Executes plans. Not there yet: making one raises an :class:`Error`."""

    def __init__(self, *arguments: object, **options: object) -> None:
        raise _later("Executor")
