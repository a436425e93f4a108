"""Hints: settings by name, some of them for other backends."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchcomms._options import CommOptions

MEDIA = "ringfold::media"
"""The transport of a group: ``auto``, ``shared`` (shared memory, or an error) or ``tcp``."""

TAG = "ringfold::tag"
"""The tag of sends and receives, a number. A receive takes a send with the same tag."""

TLS = ("ringfold::tls_ca", "ringfold::tls_cert", "ringfold::tls_key")
"""The paths of the certificates of a group: CA, certificate and key. All or none."""

OPERATION_TIMEOUT = "ringfold::operation_timeout"
"""The setting of the timeout of operations."""

_OURS = "ringfold::"
# Settings that are hints of their own or arguments.
_NOT_SETTINGS = ("bootstrap", *(name.removeprefix(_OURS) for name in TLS))
_MEDIA_VALUES = ("auto", "shared", "tcp")
# With this hint, torch passes all options of a process group as hints.
_FROM_TORCH = "persistent_store"
_PRIORITY = ("high_priority_stream", "is_high_priority_stream")

# The warnings about hints of single operations that were given.
_warned: set[str] = set()


def is_known(name: str) -> bool:
    """Whether a hint has an effect here.

    >>> is_known("torchcomm::ncclx::high_priority_stream"), is_known("ringfold::media"), is_known("backend_option")
    (True, True, False)
    """
    return name in (MEDIA, TAG, _FROM_TORCH, *TLS) or _is_priority(name) or _is_setting(name)


def check_hints(hints: Mapping[str, str] | None) -> None:
    """Checks the hints of a communicator: warns of unknown ones, unless torch passed them.

    Raises for invalid values of known hints, and for unknown names that begin with ``ringfold::``.
    """
    if not hints:
        return
    tag_of(hints)
    wants_high_priority(hints)
    media_of(hints)
    tls_of(hints)
    if settings_of(hints):
        setting_seconds(hints, "operation_timeout")
    for name in hints:
        _reject_unknown_of_ours(name)
        if not is_known(name) and _FROM_TORCH not in hints:
            _warn(f"unknown hint {name!r}: it has no effect")


def check_call_hints(
    hints: Mapping[str, str], op: str, takes_tag: bool = False, takes_priority: bool = True
) -> None:
    """Checks the hints of a single operation: warns once of each one that has no effect."""
    for name in hints:
        if (takes_tag and name == TAG) or (takes_priority and _is_priority(name)):
            continue
        _reject_unknown_of_ours(name)
        if name == TAG:
            why = f"hint {name!r} has no effect on {op}: only sends and receives have tags"
        elif is_known(name):
            why = f"hint {name!r} has no effect on a single operation: pass it to new_comm(), split() or set_hints()"
        else:
            why = f"unknown hint {name!r}: it has no effect"
        warn_once(why)


def warn_once(text: str) -> None:
    """Warns, once in this process."""
    if text not in _warned:
        _warned.add(text)
        _warn(text)


def with_hints(options: CommOptions, hints: Mapping[str, str] | None) -> CommOptions:
    """The options with additional hints, and with what these set. The hints are a copy."""
    merged = {**(options.hints or {}), **(hints or {})}
    is_high = wants_high_priority(hints)
    if is_high is None:
        is_high = options.is_high_priority_stream
    return replace(options, hints=merged or None, is_high_priority_stream=is_high)


def tag_of(hints: Mapping[str, str] | None, default: int = 0) -> int:
    """The tag of a transfer: a receive takes a send with the same tag."""
    tag = (hints or {}).get(TAG)
    if tag is None:
        return default
    if not str(tag).isdecimal():
        raise RuntimeError(f"invalid tag {tag!r}: must be a number >= 0")
    return int(tag)


def media_of(hints: Mapping[str, str] | None) -> str:
    """The transport that the hints ask for."""
    media = (hints or {}).get(MEDIA, "auto")
    if media not in _MEDIA_VALUES:
        raise RuntimeError(f"invalid hint {MEDIA!r}: {media!r}, must be one of {', '.join(_MEDIA_VALUES)}")
    return media


def tls_of(hints: Mapping[str, str] | None) -> list[str] | None:
    """The paths of certificates; None if the environment decides."""
    paths = [path for name in TLS if (path := (hints or {}).get(name))]
    if paths and len(paths) < len(TLS):
        raise RuntimeError(f"incomplete certificates: the hints {', '.join(TLS)} must all be given")
    return paths or None


def settings_of(hints: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """The settings of a group among the hints: ``ringfold::NAME``."""
    return [
        (name.removeprefix(_OURS), str(value)) for name, value in (hints or {}).items() if _is_setting(name)
    ]


def setting_seconds(hints: Mapping[str, str] | None, name: str) -> float | None:
    """The seconds of a setting of a group, by hint, variable or file; None if only its default is known."""
    from ringfold import _native

    try:
        return _native.setting_seconds("group", name, settings_of(hints))
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def wants_high_priority(hints: Mapping[str, str] | None) -> bool | None:
    """The stream priority that the hints ask for; None without such a hint."""
    if not hints:
        return None
    from torchcomms._environment import truth

    for name, value in hints.items():
        if _is_priority(name):
            return truth(name, str(value))
    return None


def _is_setting(name: str) -> bool:
    if not name.startswith(_OURS):
        return False
    # Only such a hint needs the native module here.
    from ringfold import _native

    setting = name.removeprefix(_OURS)
    return setting not in _NOT_SETTINGS and (setting == "config" or setting in _native.setting_names("group"))


def _is_priority(name: str) -> bool:
    return name.rpartition("::")[2] in _PRIORITY


def _reject_unknown_of_ours(name: str) -> None:
    if name.startswith(_OURS) and not is_known(name):
        raise RuntimeError(
            f"unknown hint {name!r}: hints of ringfold are {', '.join((MEDIA, TAG, *TLS))}, and settings"
        )


def _warn(text: str) -> None:
    """Warns, at the line outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torchcomms"):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, UserWarning, stacklevel=level)
