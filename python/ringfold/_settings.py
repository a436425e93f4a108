"""Settings by name, as ``settings=`` of communicators, masters and runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from os import PathLike, fspath

SettingValue = str | bool | int | float | timedelta | PathLike[str] | Iterable[str]
"""A text such as ``"2.5s"``, a number (of seconds, if it is a time), a bool, a timedelta, a path, or several addresses."""


def setting_pairs(
    settings: Mapping[str, SettingValue] | None, **arguments: SettingValue | None
) -> list[tuple[str, str]]:
    """The settings as the native module takes them. Those that are arguments have priority, unless they are ``None``.

    >>> from datetime import timedelta
    >>> setting_pairs({"quic": False, "heartbeat": timedelta(seconds=0.25), "relays": ["a:1", "b:2"]})
    [('quic', 'false'), ('heartbeat', '0.25'), ('relays', 'a:1,b:2')]
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    return [(str(name), _text(name, value)) for name, value in {**(settings or {}), **given}.items()]


def _text(name: str, value: SettingValue) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case timedelta():
            return str(value.total_seconds())
        case PathLike():
            return fspath(value)
        case Iterable():
            return ",".join(value)
    raise TypeError(
        f"invalid setting {name!r}: {type(value).__name__} is not a text, number, bool, time or list"
    )
