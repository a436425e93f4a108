"""Timeouts in compiled functions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torchcomms._options import Timeout, TimeoutLike


def traced_seconds(timeout: TimeoutLike) -> float | None:
    """A timeout in seconds. Dynamo traces this, but not ``total_seconds()``."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        return timeout.days * 86400.0 + timeout.seconds + timeout.microseconds * 1e-6
    if isinstance(timeout, (int, float)):
        return float(timeout)
    raise TypeError(f"invalid timeout {timeout!r}: must be a timedelta or a number of seconds")


def allow_in_compiled_functions() -> None:
    """Lets compiled functions construct timedeltas from constants.

    Dynamo has no public way to add a class whose values are constants. If its internals differ in a version of torch, timeouts
    must be made outside of compiled functions.
    """
    try:
        from torch._dynamo.variables.builder import SourcelessBuilder
        from torch._dynamo.variables.user_defined import UserDefinedClassVariable, UserDefinedObjectVariable

        builder: Any = SourcelessBuilder
        handlers: dict[type, Any] = builder._type_handlers
        constants = UserDefinedClassVariable._constant_fold_classes()
    except (ImportError, AttributeError):
        return
    for kind in (timedelta, Timeout):
        constants.add(kind)
        handlers.setdefault(kind, lambda _, value: UserDefinedObjectVariable(value))
