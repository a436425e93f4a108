"""Arguments that have two names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def also_named(**names: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Makes a function accept arguments under other names, too: ``also_named(other="name")``.

    >>> @also_named(peer_rank="dst_rank")
    ... def signal(dst_rank):
    ...     return dst_rank
    >>> signal(peer_rank=1), signal(dst_rank=1), signal(1)
    (1, 1, 1)
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def renamed(*arguments: Any, **named: Any) -> T:
            if named:
                for other, name in names.items():
                    if other in named:
                        if name in named:
                            raise TypeError(f"invalid arguments: {other} and {name} are the same argument")
                        named[name] = named.pop(other)
            return function(*arguments, **named)

        return renamed

    return decorate
