"""How gradients reach a step: from stock DDP, or from a plain module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel


class Averager(Protocol):
    """Takes local gradients, and gives averages."""

    @property
    def is_in_step(self) -> bool: ...
    def put(self, number: int, gradient: torch.Tensor | None) -> None: ...
    def finish(self) -> None: ...
    def mean_of(self, number: int) -> torch.Tensor: ...


class DdpFront:
    """A communication hook of DDP. Buckets are reduced while the rest of backward computes."""

    def __init__(
        self, model: DistributedDataParallel, parameters: Sequence[torch.Tensor], to: Averager
    ) -> None:
        self._numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._to = to
        self._waiting: list[tuple[torch.Tensor, list[tuple[int, torch.Tensor]], Any]] = []
        model.register_comm_hook(self, _ddp_hook)

    def take(self, bucket: Any) -> Any:
        """Takes a bucket of DDP; the future is its average."""
        future: Any = torch.futures.Future()
        buffer = bucket.buffer()
        if not self._to.is_in_step:
            future.set_result(buffer)
            return future
        gradients = [
            (self._numbers[id(parameter)], gradient)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]
        for number, gradient in gradients:
            self._to.put(number, gradient)
        self._waiting.append((buffer, gradients, future))
        if bucket.is_last():
            waiting, self._waiting = self._waiting, []
            self._to.finish()
            for buffer, gradients, each in waiting:
                for number, gradient in gradients:
                    gradient.copy_(self._to.mean_of(number))
                each.set_result(buffer)
        return future


def _ddp_hook(front: DdpFront, bucket: Any) -> Any:
    return front.take(bucket)


# DDP checks these, and does not understand postponed ones.
_ddp_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}


class PlainFront:
    """Hooks of the parameters. Buckets are reduced while the rest of backward computes."""

    def __init__(self, parameters: Sequence[torch.Tensor], to: Averager) -> None:
        self._parameters = parameters
        self._to = to
        self._is_queued = False
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._hook_of(number))  # type: ignore[no-untyped-call]

    def _hook_of(self, number: int) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            if not self._to.is_in_step:
                return
            if not self._is_queued:
                self._is_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._to.put(number, parameter.grad)

        return hook

    def _finish(self) -> None:
        self._is_queued = False
        self._to.finish()
        for number, parameter in enumerate(self._parameters):
            mean = self._to.mean_of(number)
            if parameter.grad is None:
                parameter.grad = mean.clone()
            else:
                parameter.grad.copy_(mean)
