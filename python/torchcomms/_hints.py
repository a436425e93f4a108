"""Hints: settings by name, some of them for other backends."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

MEDIA = "ringfold::media"
"""The transport: ``auto``, ``shared`` (shared memory, or an error) or ``tcp``."""

TAG = "ringfold::tag"
"""The tag of a send or receive, a number. A receive takes a send with the same tag."""

# With this hint, torch passes all options of a process group as hints.
_FROM_TORCH = "persistent_store"
_PRIORITY = ("high_priority_stream", "is_high_priority_stream")


def is_known(name: str) -> bool:
    """Whether a hint has an effect here.

    >>> is_known("torchcomm::ncclx::high_priority_stream"), is_known("ringfold::media"), is_known("backend_option")
    (True, True, False)
    """
    return name in (MEDIA, TAG, _FROM_TORCH) or name.rpartition("::")[2] in _PRIORITY


def check_hints(hints: Mapping[str, str] | None) -> None:
    """Warns of unknown hints, unless torch passed them."""
    if not hints or _FROM_TORCH in hints:
        return
    for name in hints:
        if not is_known(name):
            warnings.warn(f"unknown hint {name!r}: it has no effect", UserWarning, stacklevel=4)


def wants_high_priority(hints: Mapping[str, str] | None) -> bool | None:
    """The stream priority that the hints ask for; None without such a hint."""
    from torchcomms._environment import truth

    for name, value in (hints or {}).items():
        if name.rpartition("::")[2] in _PRIORITY:
            return truth(name, str(value))
    return None
