"""Which variants of a test run: a few by default, all with ``./test --long``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def is_long() -> bool:
    """Whether the long variants were asked for."""
    return "RINGFOLD_LONG" in os.environ


def short_of(short: Sequence[T], more: Sequence[T]) -> list[T]:
    """The short list, and with ``./test --long`` more."""
    return [*short, *(more if is_long() else ())]
