"""The batches of a loader, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ringfold.torch.elastic.sampler import Sampler


class Batches:
    """Draws the batch of each step. With an elastic sampler the batch has the samples that the ledger assigns."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        # A loader that was made with a batch sampler has the sampler and the size there: those of accelerate do.
        groups = getattr(loader, "batch_sampler", None)
        samplers = (getattr(each, "sampler", None) for each in (loader, groups))
        self.sampler = next((each for each in samplers if isinstance(each, Sampler)), None)
        self.size: int = getattr(loader, "batch_size", None) or getattr(groups, "batch_size", None) or 1
        if self.sampler is not None and any(getattr(each, "drop_last", False) for each in (loader, groups)):
            raise ValueError("invalid loader: an elastic sampler needs drop_last=False")
        self._last: Any = None
        self._world: tuple[tuple[int, ...], int] | None = None

    def next(self, sizes: Sequence[int], slot: int) -> tuple[Any, list[list[int]], int]:
        """The batch of the next step, the samples of all replicas, and how many samples of this replica count."""
        if self.sampler is None:
            return self._draw(), [[] for _ in sizes], 1
        assigned = self.sampler.ledger.assign(sizes)
        mine = assigned[slot]
        if not mine:
            # Another batch takes the place of none; it has no weight.
            if self._last is None:
                self._last = self._any_batch()
            return self._last, assigned, 0
        world = (tuple(sizes), slot)
        if self._iterator is None or world != self._world:
            self._restart(world)
        batch, drawn = self._predicted()
        if drawn != mine:
            self._restart(world)
            batch, drawn = self._predicted()
        if drawn != mine:
            raise RuntimeError("the loader does not draw the samples of its sampler in batches of batch_size")
        self._last = batch
        return batch, assigned, len(mine)

    def _restart(self, world: tuple[tuple[int, ...], int]) -> None:
        assert self.sampler is not None
        self.sampler.plan(*world)
        self._iterator, self._world = iter(self._loader), world

    def _predicted(self) -> tuple[Any, list[int] | None]:
        assert self._iterator is not None and self.sampler is not None
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            return None, None
        return batch, self.sampler.take()

    def _any_batch(self) -> Any:
        assert self.sampler is not None
        # As if this replica were alone.
        self.sampler.plan([self.size], 0)
        self._iterator = None
        return next(iter(self._loader))

    def _draw(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._loader)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
        raise ValueError("invalid loader: it has no batches")
