"""Newcomers are let in, and all replicas agree on the state."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import pccl
import torch
from ringfold.elastic.reduction import Operand, PendingReduction, can_retry
from ringfold.elastic.run import OWN_TAGS
from ringfold.elastic.wait_notice import WaitNotice
from ringfold.torch.divergence import differences
from ringfold.torch.elastic.agreement import Agreement, Claim, agree, read_claims
from ringfold.torch.elastic.policy import Policy
from ringfold.torch.elastic.replica import Replica
from ringfold.torch.elastic.small_state import BYTES_MAX
from ringfold.torch.elastic.stop_request import StopRequest
from ringfold.torch.elastic.world import World

logger = logging.getLogger("ringfold")

# How often newcomers are asked for.
_VOTE_SECONDS = 0.5
# The poll interval while there are too few replicas.
_WAIT_SECONDS = 0.1
_FAILURES_MAX = 20


class Preempted(Exception):
    """SIGTERM has come to a rank of this replica."""


class Admission:
    """Asks for newcomers, lets them in, and agrees with them. All ranks of all replicas do the same."""

    def __init__(
        self, communicator: pccl.Communicator, replica: Replica, policy: Policy, stop: StopRequest
    ) -> None:
        self._communicator, self._replica, self._policy, self._stop = communicator, replica, policy, stop
        self._last_vote = 0.0

    def wants_vote(self) -> bool:
        """Whether it is time to ask for newcomers."""
        return time.monotonic() - self._last_vote > _VOTE_SECONDS

    def are_peers_pending(self) -> bool:
        """Whether newcomers wait. All ranks of all replicas ask together."""
        self._last_vote = time.monotonic()
        for _ in range(_FAILURES_MAX):
            try:
                return self._communicator.are_peers_pending()
            except pccl.PCCLError as error:
                _check_retry(error)
        return False

    def admit(
        self, pack: Callable[[], tuple[Claim, torch.Tensor]], layout: Mapping[str, str], has_voted: bool
    ) -> tuple[World, Agreement, torch.Tensor]:
        """Lets newcomers in until the replicas are enough. ``pack`` gives the claim of this replica and its small state; the
        result has that of the run. A replica with another ``layout`` than the one with the state ends with an error."""
        failures = 0
        notice = WaitNotice()
        while True:
            claim, packed = pack()
            if not has_voted:
                self._vote()
            has_voted = False
            self._last_vote = time.monotonic()
            claims = self._exchange(claim)
            world = self._order(claims)
            if world is not None:
                by_id = {each.replica: each for each in claims}
                claims = [by_id[number] for number in world.ids]
                if self._replica.any(len({each.layout for each in claims}) > 1):
                    self._compare_layouts(claims, world, layout)
                elif len(world) >= self._policy.replicas_min:
                    agreement = agree(claims)
                    state = self._take_small_state(agreement, world, packed)
                    if state is not None:
                        return replace(world, batch_sizes=agreement.batch_sizes), agreement, state
                else:
                    self._wait(len(world), notice)
                    continue
            failures += 1
            if failures == _FAILURES_MAX:
                raise RuntimeError(
                    "the replicas did not agree on the state: too many of them were lost meanwhile"
                )

    def exchange(self, world: World, mine: bytes) -> list[bytes]:
        """What all replicas say; nothing of those that were lost."""
        lengths = torch.zeros(len(world), dtype=torch.int64)
        lengths[world.slot] = len(mine)
        lengths = self.sum(lengths)
        rows = torch.zeros(len(world), max(1, min(int(lengths.max()), BYTES_MAX)), dtype=torch.uint8)
        if mine:
            rows[world.slot, : len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        rows = self.sum(rows.view(-1)).view(len(world), -1)
        pairs = zip(rows, lengths.tolist(), strict=True)
        return [row[:length].numpy().tobytes() if row.any() else b"" for row, length in pairs]

    def are_all_well(self, is_well: bool) -> bool:
        """Whether all ranks of all living replicas are."""
        mine = torch.tensor([not is_well], dtype=torch.int64)
        return not self._replica.any(self.sum(mine).item() > 0)

    def _compare_layouts(self, claims: list[Claim], world: World, layout: Mapping[str, str]) -> None:
        source = agree(claims).source
        texts = self.exchange(world, json.dumps(layout).encode())
        if not self._replica.any(claims[world.slot].layout != claims[source].layout):
            logger.warning(
                "a replica with another model or optimizer is not admitted: its error says what differs"
            )
            return
        self._communicator.leave()
        found = differences([json.loads(texts[source] or b"{}"), layout], ["the others", "this replica"])
        raise ValueError(
            f"this replica is not admitted: its model or optimizer is not that of {world.names[source]}: {found}"
        )

    def _wait(self, present: int, notice: WaitNotice) -> None:
        needed = self._policy.replicas_min
        if self._policy.below_min == "stop":
            raise RuntimeError(f"{present} of at least {needed} replicas are left: the run stops")
        notice.log("waiting for replicas: %d of %d", present, needed)
        time.sleep(_WAIT_SECONDS)

    def _exchange(self, claim: Claim) -> list[Claim]:
        """The claims of all replicas, in the order of their peers."""
        members = self._communicator.members()
        place = next((place for place, member in enumerate(members) if member.is_self), 0)
        return read_claims(self.sum(claim.vector(place, max(1, len(members))).view(-1)))

    def _vote(self) -> None:
        for _ in range(_FAILURES_MAX):
            try:
                self._communicator.update_topology()
                return
            except pccl.PCCLError as error:
                _check_retry(error)
        raise RuntimeError("the replicas did not vote: too many of them were lost meanwhile")

    def sum(self, mine: torch.Tensor) -> torch.Tensor:
        """The sum over all replicas. All of them try again if one is lost, so all go on with the same result."""
        total = torch.empty_like(mine)
        operand = Operand(mine, total, OWN_TAGS, pccl.ReduceOp.SUM)
        PendingReduction(self._communicator, nullcontext, [operand], 1).wait()
        return total

    def _order(self, claims: list[Claim]) -> World | None:
        """The order of the replicas: that of rank 0. None if the ranks of this replica see different ones; then all replicas find
        the same, and vote again."""
        seen = [claim.replica for claim in claims]
        rows = self._replica.gather([len(seen), self._stop.is_made])
        if any(stops for _, stops in rows):
            raise Preempted
        counts = {count for count, _ in rows}
        if len(counts) > 1 or 0 in counts:
            return None
        orders = self._replica.gather(seen)
        if any(set(order) != set(orders[0]) for order in orders) or self._replica.id not in orders[0]:
            return None
        ids = tuple(orders[0])
        return World(ids, self._names(seen, ids), (0,) * len(ids), ids.index(self._replica.id))

    def _names(self, seen: list[int], ids: tuple[int, ...]) -> tuple[str, ...]:
        members = self._communicator.members()
        if len(members) != len(seen):
            return tuple(f"{number:x}"[:6] for number in ids)
        names = {number: member.name for number, member in zip(seen, members, strict=True)}
        suffix = f"/{self._replica.rank}" if self._replica.ranks > 1 else ""
        return tuple(names[number].removesuffix(suffix) for number in ids)

    def _take_small_state(
        self, agreement: Agreement, world: World, packed: torch.Tensor
    ) -> torch.Tensor | None:
        """The small state of the source, or None if it was lost."""
        if not agreement.needs_sync:
            return packed
        is_source = world.slot == agreement.source
        mine = packed if is_source else torch.zeros(agreement.state_bytes, dtype=torch.uint8)
        total = self.sum(mine)
        return None if self._replica.any(not total.any()) else total


def _check_retry(error: pccl.PCCLError) -> None:
    if not can_retry(error) and error.result != pccl.Result.TOO_FEW_PEERS:
        raise error
