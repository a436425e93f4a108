"""Elastic runs under PyTorch Lightning's Trainer.

from ringfold.torch.elastic.lightning import ElasticCallback, ElasticLoader

run = elastic.join("10.0.0.7:48148")
sampler = elastic.Sampler(dataset, run)
loader = ElasticLoader(run, DataLoader(dataset, batch_size=16, sampler=sampler), until=1000)
trainer = Trainer(max_epochs=1, callbacks=[ElasticCallback(run, sampler=sampler)])
trainer.fit(module, loader)
run.leave()

Fabric needs none of this: ``run.batches`` drives its loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from ringfold.torch.elastic.run import ElasticRun
from ringfold.torch.elastic.sampler import Sampler


class ElasticLoader:
    """The batches of a run, as a loader for ``Trainer.fit``. One epoch of the Trainer is the whole run."""

    def __init__(self, run: ElasticRun, loader: Iterable[Any], until: int) -> None:
        self._run, self._loader, self._until = run, loader, until

    def __iter__(self) -> Iterator[Any]:
        return (batch for _, batch in self._run.batches(self._loader, self._until))

    def __len__(self) -> int:
        """The most batches there can be, since a step may be made several times. The Trainer fetches a batch ahead of its
        step from a loader without a length."""
        return self._until * self._run.policy.attempts


class ElasticCallback(Callback):
    """Replicates the module and its optimiser, and lets the run commit the optimiser's steps.

    Arguments:
        run: the run.
        sampler, rng, extra: as for :meth:`ElasticRun.replicate`.
    """

    def __init__(
        self,
        run: ElasticRun,
        *,
        sampler: Sampler | None = None,
        rng: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._run = run
        self._sampler, self._rng, self._extra = sampler, rng, extra

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replicates what the Trainer has made by now."""
        _check(trainer)
        (optimizer,) = trainer.optimizers
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._run.replicate(
            pl_module,
            optimizer,
            scheduler=schedulers[0] if schedulers else None,
            sampler=self._sampler,
            rng=self._rng,
            extra=self._extra,
        )


def _check(trainer: Trainer) -> None:
    """Raises an error for settings with which the Trainer's steps are not those of the run."""
    if trainer.max_epochs != 1:
        raise ValueError(f"invalid max_epochs={trainer.max_epochs}: must be 1, which is the whole run")
    if trainer.accumulate_grad_batches != 1:
        raise ValueError(
            f"invalid accumulate_grad_batches={trainer.accumulate_grad_batches}: must be 1, a batch is a step"
        )
    if trainer.enable_validation and isinstance(trainer.val_check_interval, float):
        raise ValueError(
            f"invalid val_check_interval={trainer.val_check_interval}: must be a number of batches or a time, since the "
            "number of batches of a run is not known"
        )
    if trainer.world_size != 1:
        raise ValueError(f"invalid world of {trainer.world_size} processes: a Trainer is one replica")
    if len(trainer.optimizers) != 1:
        raise ValueError(f"invalid number of optimisers {len(trainer.optimizers)}: must be 1")
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ValueError(
            f"invalid precision={trainer.precision!r}: its gradient scaler skips steps; use bf16-mixed"
        )
