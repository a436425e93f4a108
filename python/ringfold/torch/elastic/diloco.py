"""DiLoCo: replicas train on their own for many steps, and average their progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pccl
import torch


@dataclass(frozen=True)
class DiLoCo:
    """Replicas average their progress instead of their gradients: ``run.replicate(..., diloco=DiLoCo(every=50))``.

    Every replica has two copies of the parameters: those of the model, which ``optimizer.step()`` changes at once, and the *outer*
    parameters, which are equal on all replicas. The loop over ``run.batches()`` stays as it is; a step is one inner step.

    **The algorithm.** The parameters are divided into ``fragments`` groups of about equal size: the first parameters of the model,
    those that follow, and so on. A *boundary* comes every ``every / fragments`` inner steps, and also when the samples of an epoch are
    used up. At a boundary one fragment is due, in sequential order. Each replica measures its progress in it, D = outer parameters -
    parameters of the model, since the fragment's last boundary. The pseudo-gradient is the mean of D over the living replicas,
    weighted by the samples that each has used in that time (by its inner steps without an elastic sampler). The outer
    optimiser makes one step with it from the outer parameters of the fragment. With plain SGD and a learning rate of 1 the result is the
    average of all models.

    **Synchronous** (``delay=0``): replicas wait for the pseudo-gradient at the boundary, and the model gets the outer parameters.

    **Overlapped** (``delay=10``): the reduction is in flight during the next 10 inner steps, and is applied then. The model gets the
    new outer parameters plus its own progress since the boundary, which the others have not seen yet: it counts in the next D.

    **Streaming** (``fragments=4``): a quarter of the parameters at a time, so that the traffic is even. ``quantization`` sends
    pseudo-gradients in fewer bits.

    At the end of ``run.batches(until=...)`` the reduction in flight is applied, and then the progress in all fragments, so that all
    replicas end with the same parameters.

    **Replicas that join or are lost.** Newcomers are let in after the outer step of a boundary. They fetch the outer parameters and the
    state of the outer optimiser, and train from there; their inner optimiser begins anew. The progress of a replica that is lost, since
    the boundary before, is lost; its samples of that time are used by others in the same epoch. With several fragments older
    samples of it count as used, though the progress on them is in some fragments only.

    **Precision.** Outer parameters, D and the reduction are float32 (float64 for parameters of that type), for any type of the model.
    D is measured from the outer parameters rounded to the type of the model. Buffers of the model become their weighted mean at each
    boundary. Memory beside the model: the outer parameters, the state of the outer optimiser, and two buffers of the same size.

    Arguments:
        every: how many inner steps there are between two boundaries of a parameter.
        fragments: how many groups of parameters take turns; divides ``every``.
        delay: how many inner steps the reduction may take; at most ``every / fragments``.
        quantization: ``pccl.QuantizationOptions`` for pseudo-gradients.
        outer_optimizer: creates the outer optimiser for a list of parameters. The default is
            ``SGD(lr=0.7, momentum=0.9, nesterov=True)``. In a replica of several ranks it gets the shards of each.
    """

    every: int
    fragments: int = 1
    delay: int = 0
    quantization: pccl.QuantizationOptions | None = None
    outer_optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("fragments", self.fragments)):
            if value < 1:
                raise ValueError(f"invalid {name} {value}: must be at least 1")
        if self.every % self.fragments:
            raise ValueError(f"invalid every {self.every}: must be divisible by fragments={self.fragments}")
        if not 0 <= self.delay <= self.interval:
            raise ValueError(
                f"invalid delay {self.delay}: must be 0 to {self.interval}, the steps between two boundaries"
            )

    @property
    def interval(self) -> int:
        """How many inner steps there are between two boundaries."""
        return self.every // self.fragments

    def new_outer_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The outer optimiser of these parameters."""
        if self.outer_optimizer is not None:
            return self.outer_optimizer(parameters)
        return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
