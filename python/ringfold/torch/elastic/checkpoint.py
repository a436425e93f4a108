"""Checkpoints of a run: written by one replica, read by any number of replicas of any number of ranks."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from ringfold.torch.elastic.replica import Replica
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

logger = logging.getLogger("ringfold")


class Checkpoints:
    """Writes checkpoints while training goes on, one at a time."""

    def __init__(self, replica: Replica, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._replica, self._model, self._optimizer = replica, model, optimizer
        # A thread writes while this replica computes.
        self._group = replica.new_group()
        self._writing: tuple[Path, Any] | None = None

    def save(self, directory: Path, step: int, small: torch.Tensor) -> None:
        """Begins to write the state before this step. A checkpoint before it is finished first."""
        self.wait()
        path = directory / f"step-{step:08d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            self._writing = path, async_save(self._state(step, small), checkpoint_id=path, **self._options())

    def wait(self) -> None:
        """Waits for the checkpoint that is being written."""
        if self._writing is None:
            return
        (path, future), self._writing = self._writing, None
        future.result()
        logger.info("wrote %s", path)

    def restore(self, directory: Path) -> tuple[int, torch.Tensor] | None:
        """Reads the newest complete checkpoint. Its step and small state, or None if the directory has none."""
        newest = self._replica.gather([_newest(directory)])[0][0]
        if newest < 0:
            return None
        path = directory / f"step-{newest:08d}"
        if not _is_complete(path):
            raise FileNotFoundError(f"{path} is missing on rank {self._replica.rank} of the replica")
        metadata = FileSystemReader(path).read_metadata()
        size = metadata.state_dict_metadata["run.small"].size  # type: ignore[union-attr]
        state = self._state(newest, torch.zeros(size, dtype=torch.uint8))
        with _quiet():
            load(state, checkpoint_id=path, **self._options())
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        logger.info("restored %s", path)
        return newest, state["run"]["small"]

    def _options(self) -> dict[str, Any]:
        return {"no_dist": True} if self._replica.ranks == 1 else {"process_group": self._group}

    def _state(self, step: int, small: torch.Tensor) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer, "run": {"step": step, "small": small}}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that there is one process only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _is_complete(path: Path) -> bool:
    # Written last.
    return (path / ".metadata").is_file()


def _newest(directory: Path) -> int:
    """The step of the newest complete checkpoint, or -1."""
    if not directory.is_dir():
        return -1
    found = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in directory.iterdir())
    return max((int(match[1]) for match, path in found if match and _is_complete(path)), default=-1)
