"""What a rank of the matrix has found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torchcomms import ReduceOp, TorchComm

PROBLEMS_MAX = 20


@dataclass
class Report:
    """What is wrong, as one rank sees it."""

    rank: int
    problems: list[str] = field(default_factory=list)
    checks: int = 0

    def add(self, problems: Iterable[str]) -> None:
        """Counts one check, and keeps what it has found."""
        self.checks += 1
        for problem in problems:
            if len(self.problems) < PROBLEMS_MAX:
                self.problems.append(f"rank {self.rank}: {problem}")

    def expect(self, is_right: bool, what: str) -> None:
        """Counts one check."""
        self.add([] if is_right else [what])

    def refuses(
        self, what: str, words: list[str], function: Callable[..., object], *arguments: object, **more: object
    ) -> None:
        """Whether this call raises a RuntimeError that says all these words (regular expressions)."""
        try:
            function(*arguments, **more)
        except RuntimeError as error:
            lacking = [word for word in words if not re.search(word, str(error), re.IGNORECASE)]
            self.expect(not lacking, f"{what}: the message lacks {lacking}: {error}")
        except Exception as error:
            self.expect(False, f"{what}: {type(error).__name__} instead of RuntimeError: {error}")
        else:
            self.expect(False, f"{what}: nothing was raised")


Chapter = Callable[[TorchComm, Report], None]


def total(comm: TorchComm) -> float:
    """How many ranks take part in a sum."""
    tensor = torch.tensor([1.0])
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    return tensor.item()
