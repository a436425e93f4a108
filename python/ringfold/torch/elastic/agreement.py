"""Who has the state of the run, after the members have changed: a pure decision on what all of them say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from ringfold.torch.elastic.small_state import BYTES_MAX


@dataclass(frozen=True)
class Claim:
    """What a replica says of itself."""

    has_state: bool
    """Whether it has taken part in the run, or has restored a checkpoint."""
    step: int
    revision: int
    """Of the last sync that it took part in."""
    batch_size: int
    state_bytes: int
    """The size of its small state."""

    def vector(self, slot: int, slots: int) -> torch.Tensor:
        """The claim at this place of a vector for all replicas, to be summed."""
        vector = torch.zeros(slots, 5, dtype=torch.int64)
        vector[slot] = torch.tensor(
            [self.has_state, self.step, self.revision, self.batch_size, self.state_bytes]
        )
        return vector


@dataclass(frozen=True)
class Agreement:
    """What follows from the claims, the same on all replicas."""

    source: int
    """The replica that sends its small state: of those with the newest state the oldest."""
    behind: tuple[bool, ...]
    """Which replicas have to fetch the state."""
    revision: int
    """That of the sync in which they do."""
    batch_sizes: tuple[int, ...]
    step: int
    state_bytes: int

    @property
    def needs_sync(self) -> bool:
        """Whether a replica has to fetch the state."""
        return any(self.behind)


def agree(claims: Sequence[Claim]) -> Agreement:
    """Decides. The newest state wins; without any, the first replica's."""
    steps = [claim.step if claim.has_state else -1 for claim in claims]
    newest = max(steps)
    source = steps.index(newest)
    nobody = newest < 0
    if not 0 < claims[source].state_bytes <= BYTES_MAX:
        raise ValueError(
            f"invalid state of replica {source}: {claims[source].state_bytes} bytes beside the tensors, must be 1 to {BYTES_MAX}"
        )
    behind = [number != source if nobody else step != newest for number, step in enumerate(steps)]
    return Agreement(
        source=source,
        behind=tuple(behind),
        revision=max(claim.revision for claim in claims) + 1,
        batch_sizes=tuple(claim.batch_size for claim in claims),
        step=claims[source].step,
        state_bytes=claims[source].state_bytes,
    )


def read_claims(total: torch.Tensor) -> list[Claim]:
    """The claims in a sum of vectors."""
    rows: list[list[int]] = total.view(-1, 5).tolist()
    return [Claim(bool(row[0]), *row[1:]) for row in rows]
