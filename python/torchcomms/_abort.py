"""Why a communicator was aborted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AbortReason(Enum):
    """The reason of an abort."""

    NONE = 0
    ABORTED = 1
    """By :meth:`TorchComm.abort`, here or on another rank."""
    TIMED_OUT = 2
    BOOTSTRAP_POLL = 3
    """The ranks could not connect."""
    NETWORK_ERROR = 4
    """A rank died, left, or is unreachable."""
    INTERNAL_ERROR = 5
    IBRC_PROXY_TIMEOUT = 6
    """Not used here."""


@dataclass(frozen=True, repr=False)
class AbortInfo:
    """Why a communicator was aborted.

    >>> AbortInfo(AbortReason.INTERNAL_ERROR, "no memory")
    AbortInfo(reason=internal_error, context="no memory")
    """

    reason: AbortReason = AbortReason.NONE
    context: str = ""

    def __repr__(self) -> str:
        return f'AbortInfo(reason={self.reason.name.lower()}, context="{self.context}")'


_REASONS = {
    "aborted": AbortReason.ABORTED,
    "timeout": AbortReason.TIMED_OUT,
    "bootstrap": AbortReason.BOOTSTRAP_POLL,
    "lost": AbortReason.NETWORK_ERROR,
}


def info_of(failure: BaseException | None) -> AbortInfo:
    """Why a group has failed; the reason is NONE if it works, or if this rank has left it."""
    kind = getattr(failure, "kind", "")
    if failure is None or kind == "left":
        return AbortInfo()
    return AbortInfo(_REASONS.get(kind, AbortReason.INTERNAL_ERROR), str(failure))
