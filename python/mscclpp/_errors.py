"""What goes wrong, as exceptions that carry a code and words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from ringfold._error import GroupError, PortError


class ErrorCode(IntEnum):
    """What kind of failure an :class:`Error` is."""

    SystemError = 0
    """The operating system refused something."""
    InternalError = 1
    """A bug."""
    RemoteError = 2
    """Another rank died, left, or can't be reached."""
    InvalidUsage = 3
    """An argument can't be used, or ranks asked for different things."""
    Timeout = 4
    """Ranks did not do their part in time."""
    Aborted = 5
    """A rank gave up, for all."""
    ExecutorError = 6
    """A plan can't be executed."""


class BaseError(RuntimeError):
    """A call failed. ``args`` is ``(code, message)``, and both are attributes.

    >>> error = Error(ErrorCode.InvalidUsage, "tag -1 is out of range")
    >>> error.code.name, str(error)
    ('InvalidUsage', 'tag -1 is out of range')
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
    """A failure between ranks, or a misuse: ``code`` is an :class:`ErrorCode`."""

    code: ErrorCode

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(ErrorCode(code), message)


class SysError(BaseError):
    """The operating system refused something: ``code`` is its number of the error, 0 if it gave none."""


class CudaError(BaseError):
    """CUDA can't be used, or refused something: ``code`` is the number of the error, 0 if it gave none."""


class CuError(CudaError):
    """The same from CUDA's driver, which is the only part of CUDA that is used here."""


class IbError(BaseError):
    """InfiniBand can't be used."""


def invalid(words: str) -> Error:
    """A misuse."""
    return Error(ErrorCode.InvalidUsage, words)


_CODES = {
    "aborted": ErrorCode.Aborted,
    "argument": ErrorCode.InvalidUsage,
    "left": ErrorCode.InvalidUsage,
    "lost": ErrorCode.RemoteError,
    "meeting": ErrorCode.Timeout,
    "mismatch": ErrorCode.InvalidUsage,
    "timeout": ErrorCode.Timeout,
    "unsupported": ErrorCode.InvalidUsage,
}


def translated(error: GroupError | PortError) -> BaseError:
    """What a failure of the engine is called here."""
    words = str(error)
    number = int(getattr(error, "code", 0) or 0)
    if error.kind == "cuda":
        return CuError(number, words)
    if error.kind == "system":
        return SysError(number, words)
    if error.kind == "unsupported" and "InfiniBand" in words:
        return IbError(number, words)
    if error.kind == "unsupported" and "CUDA" in words:
        return CudaError(number, words)
    return Error(_CODES.get(error.kind, ErrorCode.InternalError), words)


@contextmanager
def told() -> Iterator[None]:
    """Around calls of the engine: what fails there is raised as one of the exceptions above."""
    try:
        yield
    except (GroupError, PortError) as error:
        raise translated(error) from None
