"""What has to be equal on all replicas, beside their averages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from ringfold.torch.divergence import digest_of, hashes_of, leaves
from ringfold.torch.elastic.ballot import CATEGORIES


class Equality:
    """Digests of what has to be equal, for ballots, and its details, for errors."""

    def __init__(
        self,
        values: Callable[[], Mapping[str, Any]],
        tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]],
        every: int,
    ) -> None:
        self._values, self._tensors, self._every = values, tensors, every
        self._hashed = 0

    def digests(self, step: int, is_behind: bool, is_last: bool = False) -> list[int]:
        """For each category; 0 if it is not compared. Tensors are hashed every so many steps, unless they are on their way."""
        found = {name: digest_of(value) for name, value in self._values().items()}
        before, self._hashed = self._hashed, step // self._every
        if is_last or (self._hashed != before and not is_behind):
            found["tensors"] = digest_of(hashes_of(self._tensors()))
        return [found.get(category, 0) for category in CATEGORIES]

    def details(self) -> dict[str, str]:
        """The plain values, and the hashes of tensors."""
        values = (leaf for name, value in self._values().items() for leaf in leaves(name, value))
        return dict(values) | hashes_of(self._tensors())
