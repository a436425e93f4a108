"""Arguments that have more than one name, because programs of different years call them differently."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def also(**others: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Lets a call name arguments otherwise: ``@also(dstOffset="dst_offset")``.

    >>> @also(dstOffset="dst_offset")
    ... def write(dst_offset: int) -> int:
    ...     return dst_offset
    >>> write(dstOffset=8), write(8)
    (8, 8)
    """

    def spelled(call: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(call)
        def by_any_name(*arguments: P.args, **options: P.kwargs) -> R:
            for other, name in others.items():
                if other in options:
                    if name in options:
                        raise TypeError(f"{call.__name__}() got {name!r} twice, once as {other!r}")
                    options[name] = options.pop(other)
            return call(*arguments, **options)

        return by_any_name

    return spelled
