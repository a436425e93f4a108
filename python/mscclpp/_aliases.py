"""Arguments with several keyword names, for programs of different versions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def accept_aliases(**aliases: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accepts other keyword names for arguments: ``@accept_aliases(dstOffset="dst_offset")``.

    >>> @accept_aliases(dstOffset="dst_offset")
    ... def write(dst_offset: int) -> int:
    ...     return dst_offset
    >>> write(dstOffset=8), write(8)
    (8, 8)
    """

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(call)
        def with_aliases(*arguments: P.args, **options: P.kwargs) -> R:
            for alias, name in aliases.items():
                if alias in options:
                    if name in options:
                        raise TypeError(f"{call.__name__}() got {name!r} twice, once as {alias!r}")
                    options[name] = options.pop(alias)
            return call(*arguments, **options)

        return with_aliases

    return decorate
