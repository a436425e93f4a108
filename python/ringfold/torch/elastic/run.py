"""A replica of an elastic training run."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Generator, Iterable, Mapping
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

import pccl
import torch
import torch.distributed as dist
from ringfold import _native
from ringfold._settings import setting_pairs
from ringfold.elastic.optimizer import prepare_optimizer
from ringfold.elastic.reduction import can_retry
from ringfold.elastic.state import State
from ringfold.torch.elastic import small_state
from ringfold.torch.elastic.admission import Admission, Preempted
from ringfold.torch.elastic.agreement import Agreement, Claim, Standing
from ringfold.torch.elastic.ballot import Count
from ringfold.torch.elastic.batches import Batches, Drawn
from ringfold.torch.elastic.checkpoint import Checkpoints
from ringfold.torch.elastic.diloco import DiLoCo
from ringfold.torch.elastic.fronts import DdpFront, ParameterFront, assign_mean
from ringfold.torch.elastic.outer_loop import OuterLoop
from ringfold.torch.elastic.policy import Policy
from ringfold.torch.elastic.replica import Replica
from ringfold.torch.elastic.sampler import Sampler
from ringfold.torch.elastic.shares import scaled_backward
from ringfold.torch.elastic.step import Step
from ringfold.torch.elastic.stop_request import StopRequest
from ringfold.torch.elastic.stragglers import Stragglers
from ringfold.torch.elastic.transfer import Transfer
from ringfold.torch.elastic.world import World
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("ringfold")


def join(
    address: str | None = None, *, name: str | None = None, policy: Policy | None = None, **options: Any
) -> ElasticRun:
    """Prepares to join the run of the masters at ``address``, ``"host:port"`` or several separated by commas; by default those of
    ``RINGFOLD_MASTERS``. The replica joins with the first step of :meth:`ElasticRun.batches`, so that others do not wait while its
    model is built.

    ``name`` is the name of the replica in logs and errors. Other options are those of ``pccl.Communicator``. A replica of several
    ranks is started by ``torchrun``, and each of its ranks calls this; the default process group is made if there is none.
    """
    address = address or _native.setting_masters(setting_pairs(options.get("settings")))
    if not address:
        raise ValueError("no master: pass its address, or set RINGFOLD_MASTERS")
    return ElasticRun(address, name, policy or Policy(), options)


class ElasticRun:
    """A replica of a run; see :func:`join`."""

    def __init__(self, address: str, name: str | None, policy: Policy, options: Mapping[str, Any]) -> None:
        self.policy = policy
        self.replica = Replica()
        """The ranks of this replica."""
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._communicator = _communicator(address, self._name, self.replica, options)
        self._address = address
        self._stop = StopRequest()
        self._admission = Admission(self._communicator, self.replica, policy, self._stop)
        self._is_connected = False
        # The replicated state.
        self._model: torch.nn.Module | None = None
        self._parameters: list[torch.nn.Parameter] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._scheduler: Any = None
        self._sampler: Sampler | None = None
        self._with_rng = False
        self._state: State | None = None
        self._checkpoints: Checkpoints | None = None
        self._save_to: Path | None = None
        self._standing = Standing.NEW
        self._number = 0
        self._revision = -1
        # The world and the step.
        self._world = World()
        self._wants_vote = False
        self._transfer: Transfer | None = None
        self._step: Step | None = None
        self._outer: OuterLoop | None = None
        self._is_committed = False
        self._late = Stragglers(policy.straggler_factor, policy.straggler_steps)
        self._stragglers: tuple[str, ...] = ()

    # --- who takes part --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of this replica. It stays the same."""
        return self._name

    @property
    def rank(self) -> int:
        """The number of this replica among the living ones; the oldest has 0."""
        return self._world.slot

    @property
    def world_size(self) -> int:
        """The number of living replicas."""
        return max(1, len(self._world))

    @property
    def step(self) -> int:
        """The number of the current or next step."""
        return self._number

    @property
    def stragglers(self) -> tuple[str, ...]:
        """The names of the replicas that are late, by the policy."""
        return self._stragglers

    @property
    def replica_group(self) -> dist.ProcessGroup:
        """The process group of this replica's own ranks, for DDP. One of a single rank is made if there is none."""
        return self.replica.group

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
        diloco: DiLoCo | None = None,
    ) -> None:
        """Says what is equal on all replicas: the model (stock DDP, FSDP2, tensor parallel, or a plain module) and the optimiser,
        and, if given, the state of a scheduler, a sampler, torch's random numbers, and other tensors. With ``diloco``, replicas train
        on their own, and the outer parameters and optimiser are equal."""
        if self._model is not None:
            raise RuntimeError("replicate() was called before: make another run for another model")
        self._model, self._optimizer = model, optimizer
        self._scheduler, self._sampler, self._with_rng = scheduler, sampler, rng
        # A compiled module runs the one that it was made of.
        stock = getattr(model, "_orig_mod", model)
        plain = stock.module if isinstance(stock, DistributedDataParallel) else stock
        self._parameters = [p for p in plain.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("invalid model: it has no parameters that require gradients")
        shared: tuple[torch.nn.Module, torch.optim.Optimizer] = (stock, optimizer)
        if diloco is not None:
            ledger = None if sampler is None else sampler.ledger
            parts = (self._communicator, self.replica, self._stop, self._finish_transfer)
            self._outer = OuterLoop(diloco, plain, optimizer, ledger, self.policy, *parts)
            plain = self._outer.module
            shared = (plain, self._outer.optimizer)
        prepare_optimizer(shared[1])
        tensors = {
            "model": dict(plain.named_parameters()),
            "optimizer": shared[1],
            "extra": dict(extra or {}),
        }
        self._state = State({key: value for key, value in tensors.items() if value})
        self._checkpoints = Checkpoints(self.replica, *shared)
        if diloco is not None:
            return
        buffers = [buffer for buffer in plain.buffers() if buffer.numel()]
        self._step = Step(
            self._communicator, self.replica, self._parameters, buffers, self.policy.batch, self._stop
        )
        if isinstance(stock, DistributedDataParallel):
            DdpFront(stock, self._parameters, self._step)
        else:
            ParameterFront(self._parameters, self._step)
        step = optimizer.step

        # A method with the attributes of the original one: schedulers look for both.
        @wraps(step)
        def committed_step(_: torch.optim.Optimizer, closure: Any = None, **named: Any) -> Any:
            if self._step is None or not self._step.is_open:
                return step(closure, **named)
            if closure is None:
                return self._apply(step, named)
            with torch.enable_grad():
                loss = closure()
            self._apply(step, named)
            return loss

        optimizer.step = MethodType(committed_step, optimizer)  # type: ignore[method-assign]

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a checkpoint, ``directory/step-...``, while training goes on. All replicas call it in the same step; the oldest one
        writes, at the end of the step."""
        self._replicated()
        self._save_to = Path(directory)
        steps = self._outer or self._step
        if steps is None or not steps.is_open:
            self._begin_save()

    def restore(self, directory: str | os.PathLike[str]) -> bool:
        """Reads the newest complete checkpoint of a directory, if it has one, before the first step. If this replica joins others
        that train, it takes their state instead; if all replicas were lost, the newest checkpoint that one of them has wins."""
        checkpoints = self._replicated()
        if self._is_connected:
            raise RuntimeError("restore() after the first step: call it before batches()")
        restored = checkpoints.restore(Path(directory))
        if restored is None:
            return False
        self._number, small = restored
        self._load_small_state(small_state.unpack(small))
        if self._outer is not None:
            self._outer.restart(self._number)
        self._standing = Standing.RESTORED
        return True

    # --- steps -----------------------------------------------------------------------------------------------------

    def batches(
        self, loader: Iterable[Any], until: int | None = None
    ) -> Generator[tuple[int, Any], None, None]:
        """Yields the number of each step and its batch, until that number is reached.

        Before a step, newcomers are let in. A step that was not committed is made again with the same batch,
        unless the members have changed.
        """
        checkpoints = self._replicated()
        assert self._model is not None
        batches = Batches(loader)
        if batches.sampler is not self._sampler:
            raise ValueError(
                "invalid sampler: pass the same elastic sampler to the loader and to replicate()"
            )
        attempts = 0
        drawn: Drawn | None = None
        drawn_by: World | None = None
        while until is None or self._number < until:
            try:
                self._begin_step(batches)
            except Preempted:
                logger.info("SIGTERM: leaving the run at step %d", self._number)
                self.leave()
                return
            if until is not None and self._number >= until:
                break
            if self._outer is not None:
                yield from self._inner_step(self._outer, batches)
                continue
            step = self._averaged()
            if drawn is None or attempts == 0 or drawn_by != self._world:
                drawn, drawn_by = batches.next(self._world), self._world
            is_behind = self._transfer is not None and self._transfer.is_behind
            self._is_committed = False
            total = len(self._world) if self._sampler is None else sum(self._world.batch_sizes)
            step.begin(self._world, 0.0 if is_behind else drawn.weight, total, self._admission.wants_vote())
            try:
                with scaled_backward(self._model, drawn.share):
                    yield self._number, drawn.batch
            finally:
                step.end()
            if self._is_committed:
                attempts = 0
                self._end_step(drawn)
                continue
            if step.count is None:
                raise RuntimeError(f"step {self._number} made no backward(): nothing was averaged")
            attempts += 1
            self._world = self._world.keep(step.count.contributed)
            if attempts >= self.policy.attempts:
                raise RuntimeError(f"step {self._number} was not committed in {attempts} attempts")
        if self._outer is not None and self._is_connected:
            for count in self._outer.finish(self._number, lambda: self._world):
                self._note_stragglers(self._keep_living(count))
        checkpoints.wait()

    def _inner_step(self, outer: OuterLoop, batches: Batches) -> Generator[tuple[int, Any], None, None]:
        """One step of DiLoCo: it is local."""
        assert self._model is not None
        drawn = batches.next(self._world)
        with outer.step(drawn.weight), scaled_backward(self._model, drawn.share):
            yield self._number, drawn.batch
        outer.count(self._world, drawn.assigned)
        self._number += 1
        if self._save_to is not None:
            self._begin_save()

    def abstain(self) -> None:
        """This replica has no data for this step: call it instead of ``backward()``, on all ranks of the replica. Its gradients
        become the averages of the others. With DiLoCo it makes no inner step, and the others do not learn of it before the boundary."""
        self._replicated()
        steps = self._outer or self._averaged()
        if not steps.is_open:
            raise RuntimeError("abstain() outside a step: call it in the loop over batches()")
        steps.abstain()
        if isinstance(steps, OuterLoop):
            return
        for number, parameter in enumerate(self._parameters):
            assign_mean(steps, number, parameter)

    def leave(self) -> None:
        """Leaves the run. The others continue."""
        self._stop.restore()
        if self._checkpoints is not None:
            self._checkpoints.wait()
        self._communicator.leave()

    def _replicated(self) -> Checkpoints:
        if self._checkpoints is None:
            raise RuntimeError("call replicate() first: the run has no model yet")
        return self._checkpoints

    def _averaged(self) -> Step:
        assert self._step is not None
        return self._step

    # --- boundaries ------------------------------------------------------------------------------------------------

    def _begin_step(self, batches: Batches) -> None:
        """Joins the run with the first step. Lets newcomers in if there are any."""
        has_voted = not self._is_connected
        if not self._is_connected:
            self._stop.install()
            logger.info("connecting to the master at %s", self._address)
            self._communicator.connect()
            self._is_connected = True
        if self._outer is not None or self.replica.ranks == 1:
            is_last = self.replica.any(self._stop.is_made)
        else:
            is_last = self._averaged().is_last
        if is_last:
            raise Preempted
        if self._outer is not None and not has_voted:
            for count in self._outer.settle(self._number, lambda: self._world, self._admission.wants_vote):
                self._note_stragglers(self._keep_living(count))
        is_asked = self._wants_vote and self._admission.are_peers_pending()
        self._wants_vote = False
        if has_voted or is_asked or len(self._world) < self.policy.replicas_min:
            self._admit(batches.size, has_voted)
        if self._outer is not None:
            self._outer.launch(self._number, self._world, self._admission.wants_vote())

    def _admit(self, batch_size: int, has_voted: bool) -> None:
        def pack() -> tuple[Claim, torch.Tensor]:
            packed = small_state.pack(self._small_state())
            numbers = (self._number, self._revision, batch_size, packed.numel())
            return Claim(self.replica.id, self._standing, *numbers), packed

        is_done = False
        while not is_done:
            world, agreement, packed = self._admission.admit(pack, has_voted)
            has_voted = False
            if set(world.ids) != set(self._world.ids) and self.replica.rank == 0:
                logger.info("replicas: %s", ", ".join(world.names))
            self._world = world
            is_done = self._take_state(agreement, packed)

    def _take_state(self, agreement: Agreement, packed: torch.Tensor) -> bool:
        """Begins to fetch the state if this replica is behind. False if replicas were lost with the state of a run that begins."""
        if agreement.needs_sync:
            is_behind = agreement.behind[self._world.slot]
            if is_behind:
                self._load_small_state(small_state.unpack(packed))
            self._transfer = self._begin_transfer(agreement, is_behind)
            if agreement.standing != Standing.MEMBER and not self._begin_together(agreement):
                return False
            if self._outer is not None and is_behind:
                # Inner steps begin at the outer parameters.
                self._finish_transfer()
                self._outer.load()
        self._number, self._standing = agreement.step, Standing.MEMBER
        return True

    def _begin_together(self, agreement: Agreement) -> bool:
        """Before the first step of a run nobody computes, so all wait for the state and contribute."""
        transfer, self._transfer = self._transfer, None
        assert transfer is not None
        failure: pccl.PCCLError | None = None
        try:
            transfer.wait()
        except pccl.PCCLError as error:
            if not can_retry(error) or agreement.standing == Standing.RESTORED:
                raise
            failure = error
        if self._admission.are_all_well(failure is None):
            return True
        if failure is None:
            self._number, self._standing = agreement.step, Standing.MEMBER
        return False

    def _begin_transfer(self, agreement: Agreement, is_behind: bool) -> Transfer:
        assert self._state is not None
        self._revision = agreement.revision
        state = self._state.shared()
        state.revision = agreement.revision
        logger.info(
            "step %d: %d replicas fetch the state%s",
            agreement.step,
            sum(agreement.behind),
            ", this one too" * is_behind,
        )
        return Transfer(self._communicator, state, is_behind)

    def _finish_transfer(self) -> None:
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.wait()

    def _small_state(self) -> dict[str, Any]:
        assert self._optimizer is not None
        values: dict[str, Any] = {"optimizer": small_state.settings_of(self._optimizer)}
        if self._scheduler is not None:
            values["scheduler"] = self._scheduler.state_dict()
        if self._sampler is not None:
            values["sampler"] = self._sampler.state_dict()
        if self._outer is not None:
            values["diloco"] = self._outer.state_dict()
        if self._with_rng:
            values["rng"] = torch.get_rng_state()
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                values["cuda_rng"] = torch.cuda.get_rng_state()
        return values

    def _load_small_state(self, values: dict[str, Any]) -> None:
        assert self._optimizer is not None
        small_state.set_settings(self._optimizer, values["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(values["scheduler"])
        if self._sampler is not None:
            self._sampler.load_state_dict(values["sampler"])
        if self._outer is not None:
            self._outer.load_state_dict(values["diloco"])
        if self._with_rng:
            torch.set_rng_state(values["rng"])
            if "cuda_rng" in values and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.set_rng_state(values["cuda_rng"])

    # --- the end of a step -----------------------------------------------------------------------------------------

    def _apply(self, optimizer_step: Any, named: dict[str, Any]) -> Any:
        """``optimizer.step()``: applied only if the step is committed."""
        step = self._averaged()
        if step.count is None:
            raise RuntimeError("optimizer.step() before backward(): there are no averaged gradients")
        self._finish_transfer()
        if step.count.weight == 0:
            logger.warning("step %d: no replica contributed; it is made again", self._number)
            return None
        if self.policy.not_finite != "step" and not step.is_finite():
            if self.policy.not_finite == "stop":
                raise FloatingPointError(f"step {self._number}: the averaged gradients are not finite")
            logger.warning("step %d: the averaged gradients are not finite; it is skipped", self._number)
            self._is_committed = True
            return None
        step.assign_buffers()
        result = optimizer_step(**named)
        self._is_committed = True
        return result

    def _end_step(self, drawn: Drawn) -> None:
        count = self._averaged().count
        assert count is not None
        if self._sampler is not None:
            contributed = [
                there and weight > 0 for there, weight in zip(count.contributed, count.weights, strict=True)
            ]
            self._sampler.ledger.commit(drawn.assigned, contributed)
        self._number += 1
        seconds = self._keep_living(count)
        if self._save_to is not None:
            self._begin_save()
        self._note_stragglers(seconds)

    def _keep_living(self, count: Count) -> list[float]:
        """Forgets the replicas that were lost. The times of the others."""
        self._wants_vote = count.wants_vote
        seconds = [time for time, there in zip(count.seconds, count.contributed, strict=True) if there]
        before, self._world = self._world, self._world.keep(count.contributed)
        if len(self._world) < len(before):
            logger.info("replicas: %s", ", ".join(self._world.names))
        return seconds

    def _begin_save(self) -> None:
        directory, self._save_to = self._save_to, None
        if directory is not None and self._world.slot == 0:
            packed = small_state.pack(self._small_state())
            self._replicated().save(directory, self._number, packed)

    def _note_stragglers(self, seconds: list[float]) -> None:
        ids = self._late.note(self._world.ids, seconds)
        names = dict(zip(self._world.ids, self._world.names, strict=True))
        before, self._stragglers = self._stragglers, tuple(names[number] for number in ids)
        for name in set(self._stragglers) - set(before):
            logger.warning(
                "replica %s is a straggler: slower than %.1f times the median in %d steps",
                name,
                self.policy.straggler_factor,
                self.policy.straggler_steps,
            )
        if self.policy.evict_stragglers and self.replica.id in ids:
            self.leave()
            raise RuntimeError(f"replica {self.name} leaves the run: it is a straggler")


def _communicator(address: str, name: str, replica: Replica, options: Mapping[str, Any]) -> pccl.Communicator:
    if replica.ranks == 1:
        return pccl.Communicator(address, name=name, **options)
    return pccl.Communicator(
        address,
        replica.rank,
        name=f"{name}/{replica.rank}",
        replica=(replica.id, replica.ranks),
        **options,
    )
