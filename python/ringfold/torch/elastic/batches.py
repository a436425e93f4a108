"""The batches of a loader, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ringfold.torch.elastic.sampler import Sampler
from ringfold.torch.elastic.world import World


@dataclass(frozen=True)
class Drawn:
    """The batch of a step."""

    batch: Any
    assigned: list[list[int]]
    """The samples of all replicas."""
    weight: float
    """That of the replica: its number of samples, or 1 if they are not counted."""
    share: float = 1.0
    """The weight of this rank within the replica; the mean of its ranks is 1."""


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
        """How many samples the replica wants for a step."""
        if self.sampler is not None:
            self.size *= self.sampler.parts
            if any(getattr(each, "drop_last", False) for each in (loader, groups)):
                raise ValueError("invalid loader: an elastic sampler needs drop_last=False")
        self._last: Any = None
        self._world: tuple[tuple[int, ...], int] | None = None

    def next(self, world: World) -> Drawn:
        """The batch of the next step."""
        if self.sampler is None:
            return Drawn(self._draw(), [[] for _ in world.ids], 1.0)
        assigned = self.sampler.ledger.assign(world.batch_sizes)
        ours = assigned[world.slot]
        mine = self.sampler.mine(ours)
        if not mine:
            # Another batch takes the place of none; it has no weight.
            if self._last is None:
                self._last = self._any_batch()
            return Drawn(self._last, assigned, float(len(ours)), 0.0 if ours else 1.0)
        place = (world.batch_sizes, world.slot)
        if self._iterator is None or place != self._world:
            self._restart(place)
        batch, drawn = self._predicted()
        if drawn != mine:
            self._restart(place)
            batch, drawn = self._predicted()
        if drawn != mine:
            raise RuntimeError("the loader does not draw the samples of its sampler in batches of batch_size")
        self._last = batch
        return Drawn(batch, assigned, float(len(ours)), len(mine) * self.sampler.parts / len(ours))

    def _restart(self, place: tuple[tuple[int, ...], int]) -> None:
        assert self.sampler is not None
        self.sampler.plan(*place)
        self._iterator, self._world = iter(self._loader), place

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
        self.sampler.plan_any()
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
