"""Small models that several ranks train with any backend of torch.distributed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import ringfold.torch  # noqa: F401  (registers the backend)
import torch
import torch.distributed as dist
from torch import nn

STEPS = 5


_numbers = itertools.count()


@contextmanager
def process_group(
    backend: str, folder: Path, seconds: float = 30.0, pg_options: object | None = None
) -> Iterator[None]:
    """The default process group. Its ranks meet in a folder: a store of rank 0's would be gone with the process group, and
    others may have come for the next one by then."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(folder / f"store{next(_numbers)}"), world)
    timeout = timedelta(seconds=seconds)
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timeout, pg_options=pg_options
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


class Net(nn.Module):
    """Some layers, one of which may be left out, and statistics that DDP keeps equal."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 33)
        self.norm = nn.BatchNorm1d(33)
        self.spare = nn.Linear(33, 33)
        self.last = nn.Linear(33, 3)

    def forward(self, data: torch.Tensor, uses_spare: bool = True) -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(data)))
        if uses_spare:
            hidden = hidden + self.spare(hidden)
        out: torch.Tensor = self.last(hidden)
        return out


def batches(count: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's data."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(count):
        data = torch.randn(16, 8, generator=generator)
        yield data, data[:, :3].sin()


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    count: int = STEPS,
) -> list[float]:
    """The loss of each step."""
    losses = []
    for data, target in batches(count):
        optimizer.zero_grad()
        loss = (
            # In one type: before torch 2.12, the loss of two types has no gradient.
            nn.functional.mse_loss(model(data).float(), target)
            if loss_of is None
            else loss_of(model, data, target)
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def new_net() -> Net:
    """The same on all ranks and every time."""
    torch.manual_seed(7)
    return Net()


def bits(state: Any) -> list[int]:
    """All bits of some tensors, as numbers that can be compared."""
    return [
        int(x) for tensor in state for x in tensor.detach().reshape(-1).double().view(torch.int64).tolist()
    ]
