"""What a peer says while it waits for others, and of those that it finds."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

logger = logging.getLogger("ringfold")

# A longer wait is logged as a warning, which Python prints on standard error if the program has not set up logging.
_WARN_AFTER_SECONDS = 5.0


class WaitNotice:
    """Logs a wait at once, then as a warning, at intervals that double."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = 0.0

    @property
    def waited(self) -> float:
        """For how many seconds."""
        return time.monotonic() - self._began

    def log(self, text: str, *values: object) -> None:
        """Logs the wait, if it is time."""
        waited = self.waited
        if waited >= self._next:
            level = logging.WARNING if self._next else logging.INFO
            logger.log(level, text + " (for %.0f s)", *values, waited)
            self._next = max(_WARN_AFTER_SECONDS, 2 * self._next)


def warn_of_equal_names(names: Sequence[str]) -> None:
    """Logs names that several peers have."""
    for name in sorted({name for name in names if names.count(name) > 1}):
        logger.warning(
            "%d peers are named %r: errors and logs cannot tell them apart", names.count(name), name
        )
