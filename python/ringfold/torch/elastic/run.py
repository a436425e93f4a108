"""A replica of an elastic training run."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import pccl
import torch
import torch.distributed as dist
from ringfold.elastic.optimizer import prepare_optimizer
from ringfold.elastic.reduction import can_retry
from ringfold.elastic.run import OWN_TAGS
from ringfold.elastic.state import State
from ringfold.torch.elastic import small_state
from ringfold.torch.elastic.agreement import Agreement, Claim, agree, read_claims
from ringfold.torch.elastic.ballot import Ballot, Count
from ringfold.torch.elastic.batches import Batches
from ringfold.torch.elastic.buffers import Buffers
from ringfold.torch.elastic.fronts import DdpFront, PlainFront
from ringfold.torch.elastic.gradients import Bucket, StepReduction, buckets_of
from ringfold.torch.elastic.policy import Policy
from ringfold.torch.elastic.sampler import Sampler
from ringfold.torch.elastic.stop_request import StopRequest
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("ringfold")

# How often newcomers are asked for.
_VOTE_SECONDS = 0.5
# The poll interval while there are too few replicas.
_WAIT_SECONDS = 0.1
_VOTES_MAX = 20


def join(
    address: str | None = None, *, name: str | None = None, policy: Policy | None = None, **options: Any
) -> ElasticRun:
    """Prepares to join the run of the masters at ``address``, ``"host:port"`` or several separated by commas; by default those of
    ``RINGFOLD_MASTERS``. The replica joins with the first step of :meth:`ElasticRun.batches`, so that others do not wait while its
    model is built.

    ``name`` is the name in logs and errors. Other options are those of ``pccl.Communicator``.
    """
    address = address or os.environ.get("RINGFOLD_MASTERS")
    if not address:
        raise ValueError("no master: pass its address, or set RINGFOLD_MASTERS")
    return ElasticRun(address, name, policy or Policy(), options)


class ElasticRun:
    """A replica of a run; see :func:`join`."""

    def __init__(self, address: str, name: str | None, policy: Policy, options: Mapping[str, Any]) -> None:
        self.policy = policy
        self._communicator = pccl.Communicator(address, name=name, **options)
        self._address = address
        self._stop = StopRequest()
        self._is_connected = False
        # The replicated state.
        self._model: torch.nn.Module | None = None
        self._parameters: list[torch.nn.Parameter] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._scheduler: Any = None
        self._sampler: Sampler | None = None
        self._with_rng = False
        self._extra: Mapping[str, Any] = {}
        self._state: State | None = None
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._buffers = Buffers([])
        self._has_state = False
        self._step = 0
        self._revision = -1
        # The world of the step.
        self._members: tuple[str, ...] = ()
        self._sizes: list[int] = []
        self._slot = 0
        self._wants_vote = False
        self._last_vote = 0.0
        self._transfer: _Transfer | None = None
        # The step.
        self.is_in_step = False
        self._weight = 0.0
        self._began = 0.0
        self._reduction: StepReduction | None = None
        self._launched = 0
        self._count: Count | None = None
        self._is_committed = False

    # --- who takes part --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of this replica. It stays the same."""
        return self._communicator.name

    @property
    def rank(self) -> int:
        """The number of this replica among the living ones; the oldest has 0."""
        return self._slot

    @property
    def world_size(self) -> int:
        """The number of living replicas."""
        return max(1, len(self._members))

    @property
    def step(self) -> int:
        """The number of the current or next step."""
        return self._step

    @property
    def replica_group(self) -> dist.ProcessGroup:
        """The process group of this replica's own ranks, for DDP. One of a single rank is made if there is none."""
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        group = dist.group.WORLD
        assert group is not None
        return group

    # --- the state -------------------------------------------------------------------------------------------------

    def replicate(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any = None,
        sampler: Sampler | None = None,
        rng: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Says what is equal on all replicas: the model (stock DDP, or a plain module) and the optimiser, and, if given, the state of
        a scheduler, a sampler, torch's random numbers, and other tensors."""
        if self._model is not None:
            raise RuntimeError("replicate() was called before: make another run for another model")
        self._model, self._optimizer = model, optimizer
        self._scheduler, self._sampler, self._with_rng = scheduler, sampler, rng
        self._extra = dict(extra or {})
        plain = model.module if isinstance(model, DistributedDataParallel) else model
        self._parameters = [p for p in plain.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("invalid model: it has no parameters that require gradients")
        prepare_optimizer(optimizer)
        tensors = {"model": dict(plain.named_parameters()), "optimizer": optimizer, "extra": self._extra}
        self._state = State({key: value for key, value in tensors.items() if value})
        numbers = buckets_of(self._parameters)
        self._buckets = [Bucket(self._parameters, each) for each in numbers]
        self._buffers = Buffers([buffer for buffer in plain.buffers() if buffer.numel()])
        self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.numbers}
        if isinstance(model, DistributedDataParallel):
            DdpFront(model, self._parameters, self)
        else:
            PlainFront(self._parameters, self)
        step = optimizer.step

        def committed_step(*arguments: Any, **named: Any) -> Any:
            return self._apply(step, arguments, named) if self.is_in_step else step(*arguments, **named)

        optimizer.step = committed_step  # type: ignore[method-assign]

    # --- steps -----------------------------------------------------------------------------------------------------

    def batches(
        self, loader: Iterable[Any], until: int | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """Yields the number of each step and its batch, until that number is reached.

        Before a step, newcomers are let in. A step that was not committed is made again with the same batch,
        unless the members have changed.
        """
        if self._model is None:
            raise RuntimeError("call replicate() before batches()")
        batches = Batches(loader)
        attempts = 0
        drawn: tuple[Any, list[list[int]], int] | None = None
        drawn_by: tuple[str, ...] = ()
        while until is None or self._step < until:
            try:
                self._begin_step(batches)
            except _Preempted:
                logger.info("SIGTERM: leaving the run at step %d", self._step)
                self.leave()
                return
            if until is not None and self._step >= until:
                return
            if drawn is None or attempts == 0 or drawn_by != self._members:
                drawn, drawn_by = batches.next(self._sizes, self._slot), self._members
            batch, assigned, samples = drawn
            self._weight = float(samples if not self._is_behind() else 0)
            self._reset_step()
            self.is_in_step = True
            try:
                yield self._step, batch
            finally:
                self.is_in_step = False
            if self._is_committed:
                attempts = 0
                self._end_step(assigned)
                continue
            if self._count is None:
                raise RuntimeError(f"step {self._step} made no backward(): nothing was averaged")
            attempts += 1
            self._note_members()
            if attempts >= self.policy.attempts:
                raise RuntimeError(f"step {self._step} was not committed in {attempts} attempts")

    def leave(self) -> None:
        """Leaves the run. The others continue."""
        self._stop.remove()
        self._communicator.leave()

    # --- boundaries ------------------------------------------------------------------------------------------------

    def _connect(self, batches: Batches) -> None:
        if self._is_connected:
            return
        self._stop.install()
        logger.info("connecting to the master at %s", self._address)
        self._communicator.connect()
        self._is_connected = True
        self._admit(batches, has_voted=True)

    def _begin_step(self, batches: Batches) -> None:
        """Joins the run with the first step. Lets newcomers in if there are any."""
        self._connect(batches)
        self._check_preemption()
        if self.world_size < self.policy.replicas_min or (self._wants_vote and self._are_peers_pending()):
            self._admit(batches, has_voted=False)

    def _check_preemption(self) -> None:
        if self._stop.is_made:
            raise _Preempted

    def _are_peers_pending(self) -> bool:
        self._wants_vote = False
        self._last_vote = time.monotonic()
        try:
            return self._communicator.are_peers_pending()
        except pccl.PCCLError as error:
            if not can_retry(error):
                raise
            # A replica was lost. The next vote asks again.
            return True

    def _admit(self, batches: Batches, has_voted: bool) -> None:
        """Lets newcomers in, and agrees with all replicas on the state."""
        for _ in range(_VOTES_MAX):
            try:
                self._wait_for_replicas(has_voted)
                self._agree(batches)
                return
            except pccl.PCCLError as error:
                if not can_retry(error) and error.result != pccl.Result.TOO_FEW_PEERS:
                    raise
                has_voted = False
        raise RuntimeError("the replicas did not agree on the state: too many of them were lost meanwhile")

    def _wait_for_replicas(self, has_voted: bool) -> None:
        waited = False
        while True:
            self._check_preemption()
            if not has_voted:
                self._communicator.update_topology()
            self._last_vote = time.monotonic()
            self._note_members()
            if self.world_size >= self.policy.replicas_min:
                return
            if self.policy.below_min == "stop":
                raise RuntimeError(
                    f"{self.world_size} of at least {self.policy.replicas_min} replicas are left: the run stops"
                )
            if not waited:
                logger.info("waiting for replicas: %d of %d", self.world_size, self.policy.replicas_min)
                waited = True
            time.sleep(_WAIT_SECONDS)
            has_voted = False

    def _note_members(self) -> None:
        members = self._communicator.members()
        before = set(self._members)
        sizes = dict(zip(self._members, self._sizes, strict=True)) if self._sizes else {}
        self._members = tuple(member.peer for member in members)
        self._slot = next((slot for slot, member in enumerate(members) if member.is_self), 0)
        self._sizes = [sizes.get(peer, 0) for peer in self._members]
        if set(self._members) != before:
            logger.info("replicas: %s", ", ".join(member.name for member in members))

    def _agree(self, batches: Batches) -> None:
        packed = small_state.pack(self._small_state())
        claim = Claim(self._has_state, self._step, self._revision, batches.size, packed.numel())
        agreement = agree(self._claims(claim))
        self._sizes = list(agreement.batch_sizes)
        if self.world_size > 1 and agreement.needs_sync:
            self._take_small_state(agreement, packed)
            self._transfer = self._begin_transfer(agreement)
        self._step, self._has_state = agreement.step, True

    def _claims(self, claim: Claim) -> list[Claim]:
        slots = self.world_size
        mine = claim.vector(self._slot, slots).view(-1)
        if slots == 1:
            return read_claims(mine)
        total = torch.empty_like(mine)
        self._communicator.all_reduce(mine, total, op=pccl.ReduceOp.SUM, tag=OWN_TAGS)
        return read_claims(total)

    def _take_small_state(self, agreement: Agreement, packed: torch.Tensor) -> None:
        is_source = self._slot == agreement.source
        mine = packed if is_source else torch.zeros(agreement.state_bytes, dtype=torch.uint8)
        total = torch.empty_like(mine)
        self._communicator.all_reduce(mine, total, op=pccl.ReduceOp.SUM, tag=OWN_TAGS)
        if agreement.behind[self._slot]:
            self._load_small_state(small_state.unpack(total))

    def _small_state(self) -> dict[str, Any]:
        assert self._optimizer is not None
        values: dict[str, Any] = {"optimizer": small_state.settings_of(self._optimizer)}
        if self._scheduler is not None:
            values["scheduler"] = self._scheduler.state_dict()
        if self._sampler is not None:
            values["sampler"] = self._sampler.state_dict()
        if self._with_rng:
            values["rng"] = torch.get_rng_state()
        return values

    def _load_small_state(self, values: dict[str, Any]) -> None:
        assert self._optimizer is not None
        small_state.set_settings(self._optimizer, values["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(values["scheduler"])
        if self._sampler is not None:
            self._sampler.load_state_dict(values["sampler"])
        if self._with_rng:
            torch.set_rng_state(values["rng"])

    def _begin_transfer(self, agreement: Agreement) -> _Transfer:
        assert self._state is not None
        self._revision = agreement.revision
        state = self._state.shared()
        state.revision = agreement.revision
        is_behind = agreement.behind[self._slot]
        logger.info(
            "step %d: %d replicas fetch the state%s",
            agreement.step,
            sum(agreement.behind),
            ", this one too" * is_behind,
        )
        return _Transfer(self._communicator, state, agreement.behind, is_behind)

    # --- a step ----------------------------------------------------------------------------------------------------

    def _is_behind(self) -> bool:
        return self._transfer is not None and self._transfer.is_behind

    def _reset_step(self) -> None:
        self._began = time.monotonic()
        self._reduction, self._count, self._is_committed = None, None, False
        self._begin_reduction()

    def _begin_reduction(self) -> None:
        for bucket in self._buckets:
            bucket.begin()
        self._launched = 0

    def _open_reduction(self) -> StepReduction:
        if self._reduction is None:
            self._reduction = StepReduction(
                self._communicator, nullcontext, OWN_TAGS + 1, self._weight, max_in_flight=8
            )
        return self._reduction

    def put(self, number: int, gradient: torch.Tensor | None) -> None:
        """Takes a local gradient. A bucket leaves when it is full, in the order of buckets."""
        self._bucket_of[number].put(number, gradient if self._weight else None)
        self._launch_full()

    def _launch_full(self) -> None:
        while self._launched < len(self._buckets) and not self._buckets[self._launched].missing:
            bucket = self._buckets[self._launched]
            self._open_reduction().average(self._launched, bucket.local, bucket.mean)
            self._launched += 1

    def finish(self) -> None:
        """All gradients of a backward are there: waits for their averages."""
        for bucket in self._buckets[self._launched :]:
            for number in list(bucket.missing):
                bucket.put(number, None)
        self._launch_full()
        reduction, self._reduction = self._open_reduction(), None
        seconds = time.monotonic() - self._began
        wants_vote = time.monotonic() - self._last_vote > _VOTE_SECONDS
        ballot = Ballot(self._weight, seconds, wants_vote)
        self._buffers.reduce(reduction, len(self._buckets), self._weight > 0)
        count = reduction.finish(len(self._buckets) + len(self._buffers), ballot, self._slot, self.world_size)
        if self._count is not None and self._count.contributed != count.contributed:
            raise RuntimeError(
                "the world changed between two backward() of one step: use no_sync() for all but the last"
            )
        self._count = count
        self._begin_reduction()

    def mean_of(self, number: int) -> torch.Tensor:
        """The average of a gradient."""
        return self._bucket_of[number].mean_of(number)

    def _apply(self, step: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """``optimizer.step()``: applied only if the step is committed."""
        if self._count is None:
            raise RuntimeError("optimizer.step() before backward(): there are no averaged gradients")
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.wait()
        if self._count.weight == 0:
            logger.warning("step %d: no replica contributed; it is made again", self._step)
            return None
        if self.policy.not_finite != "step" and not self._is_finite():
            if self.policy.not_finite == "stop":
                raise FloatingPointError(f"step {self._step}: the averaged gradients are not finite")
            logger.warning("step %d: the averaged gradients are not finite; it is skipped", self._step)
            self._is_committed = True
            return None
        self._buffers.assign()
        result = step(*arguments, **named)
        self._is_committed = True
        return result

    def _is_finite(self) -> bool:
        return all(bool(torch.isfinite(bucket.mean).all()) for bucket in self._buckets)

    def _end_step(self, assigned: list[list[int]]) -> None:
        assert self._count is not None
        if self._sampler is not None:
            contributed = [
                there and weight > 0
                for there, weight in zip(self._count.contributed, self._count.weights, strict=True)
            ]
            self._sampler.ledger.commit(assigned, contributed)
        self._wants_vote = self._count.wants_vote
        self._step += 1
        self._note_members()


class _Preempted(Exception):
    """SIGTERM has come."""


class _Transfer:
    """The state on its way to replicas that are behind, while the step computes."""

    def __init__(
        self,
        communicator: pccl.Communicator,
        state: pccl.SharedState,
        behind: tuple[bool, ...],
        is_behind: bool,
    ) -> None:
        self.behind, self.is_behind = behind, is_behind
        self._communicator, self._state = communicator, state
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ringfold-transfer", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits for its end. A replica that has the state does not mind if others were lost."""
        self._thread.join()
        error = self._error
        if error is None:
            return
        if self.is_behind or not isinstance(error, pccl.PCCLError) or not can_retry(error):
            raise error
        logger.warning("a transfer of the state failed: %s", error)

    def _run(self) -> None:
        strategies = pccl.SharedStateSyncStrategy
        strategy = strategies.RECEIVE_ONLY if self.is_behind else strategies.SEND_ONLY
        try:
            self._communicator.sync_shared_state(self._state, strategy, beside_collectives=True)
        except BaseException as error:  # noqa: BLE001 - raised by wait()
            self._error = error
