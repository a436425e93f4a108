"""Who has the state of the run, after the members have changed: a pure decision on what all of them say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum

import torch
from ringfold.torch.elastic.small_state import BYTES_MAX


class Standing(IntEnum):
    """What the state of a replica is worth."""

    NEW = 0
    """It has made no step."""
    RESTORED = 1
    """It comes from a checkpoint."""
    MEMBER = 2
    """It is that of the run."""


@dataclass(frozen=True)
class Claim:
    """What a replica says of itself."""

    replica: int
    """Its number, not 0."""
    standing: int
    step: int
    revision: int
    """Of the last sync that it took part in."""
    batch_size: int
    state_bytes: int
    """The size of its small state."""
    layout: int = 0
    """A digest of the names, types and shapes of what it replicates."""

    def vector(self, place: int, places: int) -> torch.Tensor:
        """The claim at this place of a vector for all replicas, to be summed."""
        vector = torch.zeros(places, _FIELDS, dtype=torch.int64)
        vector[place] = torch.tensor(astuple(self))
        return vector


_FIELDS = 7


@dataclass(frozen=True)
class Agreement:
    """What follows from the claims, the same on all replicas."""

    source: int
    """The replica that sends its small state: of those with the newest state the first."""
    behind: tuple[bool, ...]
    """Which replicas have to fetch the state."""
    revision: int
    """That of the sync in which they do."""
    batch_sizes: tuple[int, ...]
    step: int
    state_bytes: int
    standing: int
    """That of the state."""

    @property
    def needs_sync(self) -> bool:
        """Whether a replica has to fetch the state."""
        return any(self.behind)


def agree(claims: Sequence[Claim]) -> Agreement:
    """Decides. The state of the run wins; without any, the newest checkpoint; without any, the state of the first replica."""
    for number, claim in enumerate(claims):
        if claim.step < 0 or claim.batch_size < 1:
            raise ValueError(
                f"invalid claim of replica {number}: step {claim.step}, batches of {claim.batch_size} samples"
            )
    worth = [(claim.standing, claim.step) for claim in claims]
    newest = max(worth)
    source = worth.index(newest)
    if not 0 < claims[source].state_bytes <= BYTES_MAX:
        raise ValueError(
            f"invalid state of replica {source}: {claims[source].state_bytes} bytes beside the tensors, must be 1 to {BYTES_MAX}"
        )
    # Members at the same step hold the same bits. Checkpoints of the same step may be of different runs.
    are_equal = newest[0] == Standing.MEMBER
    behind = [number != source and not (are_equal and each == newest) for number, each in enumerate(worth)]
    return Agreement(
        source=source,
        behind=tuple(behind),
        revision=max(claim.revision for claim in claims) + 1,
        batch_sizes=tuple(claim.batch_size for claim in claims),
        step=claims[source].step,
        state_bytes=claims[source].state_bytes,
        standing=newest[0],
    )


def read_claims(total: torch.Tensor) -> list[Claim]:
    """The claims in a sum of vectors; a replica that was lost in between has none."""
    rows: list[list[int]] = total.view(-1, _FIELDS).tolist()
    return [Claim(*row) for row in rows if row[0]]
