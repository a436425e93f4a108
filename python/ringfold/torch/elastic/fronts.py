"""How gradients reach a step: from stock DDP, or from parameters (plain modules, FSDP2, tensor parallel)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from ringfold.torch.elastic.shards import gradient_of
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel


class Averager(Protocol):
    """Takes local gradients, and gives averages."""

    @property
    def is_open(self) -> bool: ...
    def put(self, number: int, gradient: torch.Tensor | None) -> None: ...
    def finish(self) -> None: ...
    def mean_of(self, number: int) -> torch.Tensor | None: ...


class DdpFront:
    """A communication hook of DDP. Buckets are reduced while the rest of backward computes."""

    def __init__(
        self, model: DistributedDataParallel, parameters: Sequence[torch.Tensor], to: Averager
    ) -> None:
        self._parameters = parameters
        self._numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._to = to
        self._group = model.process_group
        self._ranks = dist.get_world_size(self._group)
        # The parameters that got a gradient in this backward, if some may get none.
        self._used: set[int] | None = None
        if model.find_unused_parameters:
            self._used = set()
            for number, parameter in enumerate(parameters):
                parameter.register_hook(self._hook_of(number))  # type: ignore[no-untyped-call]
        self._waiting: list[tuple[torch.Tensor, list[tuple[int, torch.Tensor]], Any]] = []
        model.register_comm_hook(self, _ddp_hook)

    def take(self, bucket: Any) -> Any:
        """Takes a bucket of DDP; the future is its average."""
        buffer = bucket.buffer()
        future: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        if self._ranks > 1:
            dist.all_reduce(buffer.div_(self._ranks), group=self._group)
        if not self._to.is_open:
            future.set_result(buffer)
            return future
        gradients = [
            (self._numbers[id(parameter)], gradient)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]
        for number, gradient in gradients:
            self._to.put(number, gradient if self._used is None or number in self._used else None)
        self._waiting.append((buffer, gradients, future))
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._to.finish()
        for buffer, gradients, future in waiting:
            for number, gradient in gradients:
                mean = self._to.mean_of(number)
                if mean is not None:
                    gradient.copy_(mean)
            future.set_result(buffer)
        if self._used is not None:
            self._used.clear()
            # DDP writes its gradients in a callback that it queues now, and leaves out those that only other replicas have.
            _after_backward(lambda: _after_backward(self._complete))

    def _hook_of(self, number: int) -> Any:
        def hook(_gradient: torch.Tensor) -> None:
            assert self._used is not None
            self._used.add(number)

        return hook

    def _complete(self) -> None:
        for number, parameter in enumerate(self._parameters):
            assign_mean(self._to, number, parameter)


def _ddp_hook(front: DdpFront, bucket: Any) -> Any:
    return front.take(bucket)


# DDP checks these, and does not understand postponed ones.
_ddp_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}


class ParameterFront:
    """Hooks of the parameters. Buckets are reduced while the rest of backward computes. FSDP2 calls such hooks with the shards."""

    def __init__(self, parameters: Sequence[torch.Tensor], to: Averager) -> None:
        self._parameters = parameters
        self._to = to
        self._is_queued = False
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._hook_of(number))  # type: ignore[no-untyped-call]

    def _hook_of(self, number: int) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            if not self._to.is_open:
                return
            if not self._is_queued:
                self._is_queued = True
                _after_backward(self._finish)
            self._to.put(number, gradient_of(parameter))

        return hook

    def _finish(self) -> None:
        self._is_queued = False
        self._to.finish()
        for number, parameter in enumerate(self._parameters):
            assign_mean(self._to, number, parameter)


def assign_mean(averager: Averager, number: int, parameter: torch.Tensor) -> None:
    """Sets the gradient of a parameter to its average. It stays as it is if no replica has one."""
    mean = averager.mean_of(number)
    if mean is None:
        return
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient = gradient_of(parameter)
    assert gradient is not None
    gradient.copy_(mean)


def _after_backward(call: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)
