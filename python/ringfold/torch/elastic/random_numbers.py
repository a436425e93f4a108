"""Torch's random numbers, where they are equal on all replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class LoaderNumbers:
    """The random numbers of loaders, a stream of its own: loaders of different replicas draw differently many."""

    def __init__(self) -> None:
        self._state: torch.Tensor | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Torch's random numbers in host memory are those of the loader."""
        outside = torch.get_rng_state()
        if self._state is None:
            torch.default_generator.manual_seed(int(torch.randint(1 << 62, ())))
        else:
            torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(outside)
