"""Exceptions with an error code and a message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from ringfold._error import GroupError, PortError


class ErrorCode(IntEnum):
    """The kind of an :class:`Error`."""

    SystemError = 0
    """A system call failed."""
    InternalError = 1
    """A bug."""
    RemoteError = 2
    """Another rank died, left, or cannot be reached."""
    InvalidUsage = 3
    """An argument is invalid, or the calls of ranks do not match."""
    Timeout = 4
    """A rank did not make its call in time."""
    Aborted = 5
    """A rank aborted."""
    ExecutorError = 6
    """A plan cannot be executed."""


class BaseError(RuntimeError):
    """A call failed. ``args`` is ``(code, message)``, and both are attributes.

    >>> error = Error(ErrorCode.InvalidUsage, "invalid tag -1")
    >>> error.code.name, str(error)
    ('InvalidUsage', 'invalid tag -1')
    """

    code: int
    message: str

    def __init__(self, code: int, message: str = "") -> None:
        self.code = code
        self.message = message
        super().__init__(code, message)

    def __str__(self) -> str:
        return self.message


class Error(BaseError):
    """A failure between ranks, or an invalid call: ``code`` is an :class:`ErrorCode`."""

    code: ErrorCode

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(ErrorCode(code), message)


class SysError(BaseError):
    """A system call failed: ``code`` is the errno, or 0."""


class CudaError(BaseError):
    """CUDA failed or is not available: ``code`` is the CUDA error number, or 0."""


class CuError(CudaError):
    """An error of the CUDA driver, the only part of CUDA that is used here."""


class IbError(BaseError):
    """InfiniBand is not supported."""


def invalid(message: str) -> Error:
    """An :class:`Error` for an invalid call."""
    return Error(ErrorCode.InvalidUsage, message)


_CODES = {
    "aborted": ErrorCode.Aborted,
    "argument": ErrorCode.InvalidUsage,
    "left": ErrorCode.InvalidUsage,
    "lost": ErrorCode.RemoteError,
    "bootstrap": ErrorCode.Timeout,
    "mismatch": ErrorCode.InvalidUsage,
    "timeout": ErrorCode.Timeout,
    "unsupported": ErrorCode.InvalidUsage,
}


def translate_error(error: GroupError | PortError) -> BaseError:
    """The exception for an error of the engine."""
    message = str(error)
    number = int(getattr(error, "code", 0) or 0)
    if error.kind == "cuda":
        return CuError(number, message)
    if error.kind == "system":
        return SysError(number, message)
    if error.kind == "unsupported" and "InfiniBand" in message:
        return IbError(number, message)
    if error.kind == "unsupported" and "CUDA" in message:
        return CudaError(number, message)
    return Error(_CODES.get(error.kind, ErrorCode.InternalError), message)


@contextmanager
def engine_errors() -> Iterator[None]:
    """Raises errors of the engine inside it as the exceptions of this module."""
    try:
        yield
    except (GroupError, PortError) as error:
        raise translate_error(error) from None
