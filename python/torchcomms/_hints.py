"""Hints: settings of one backend or another, by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

MEDIA = "ringfold::media"
"""Which way data takes: ``auto``, ``shared`` (memory of one host, or an error) or ``tcp``."""

TAG = "ringfold::tag"
"""Of a send or receive: a number. A receive takes what was sent with the same tag."""

# torch hands on all options of a process group, whatever they are, together with this one.
_OF_TORCH = "persistent_store"
_PRIORITY = ("high_priority_stream", "is_high_priority_stream")


def is_known(name: str) -> bool:
    """Whether a hint means something here.

    >>> is_known("torchcomm::ncclx::high_priority_stream"), is_known("ringfold::media"), is_known("backend_option")
    (True, True, False)
    """
    return name in (MEDIA, TAG, _OF_TORCH) or name.rpartition("::")[2] in _PRIORITY


def check_hints(hints: Mapping[str, str] | None) -> None:
    """Warns of hints that nobody knows. Those that torch hands on are its own affair."""
    if not hints or _OF_TORCH in hints:
        return
    for name in hints:
        if not is_known(name):
            warnings.warn(f"the hint {name!r} is not known, and does nothing", UserWarning, stacklevel=4)


def wants_high_priority(hints: Mapping[str, str] | None) -> bool | None:
    """What the hints say of the stream's priority; None if nothing."""
    from torchcomms._environment import truth

    for name, value in (hints or {}).items():
        if name.rpartition("::")[2] in _PRIORITY:
            return truth(name, str(value))
    return None
