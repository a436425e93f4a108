"""A replica of an elastic training run."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Generator, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import MethodType
from typing import Any

import pccl
import torch
import torch.distributed as dist
from ringfold.elastic.optimizer import prepare_optimizer
from ringfold.elastic.reduction import can_retry
from ringfold.elastic.state import State, layout_of
from ringfold.elastic.wait_notice import warn_of_equal_names
from ringfold.torch.divergence import DivergenceError, differences, digest_of
from ringfold.torch.elastic import small_state
from ringfold.torch.elastic.admission import Admission, Preempted
from ringfold.torch.elastic.agreement import Agreement, Claim, Standing
from ringfold.torch.elastic.ballot import CATEGORIES, Ballot, Count
from ringfold.torch.elastic.batches import Batches, Drawn
from ringfold.torch.elastic.checkpoint import Checkpoints
from ringfold.torch.elastic.diloco import DiLoCo
from ringfold.torch.elastic.equality import Equality
from ringfold.torch.elastic.fronts import DdpFront, ParameterFront, assign_mean
from ringfold.torch.elastic.outer_loop import OuterLoop
from ringfold.torch.elastic.policy import Policy
from ringfold.torch.elastic.random_numbers import LoaderNumbers
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

_NOT_CALLED = (
    "optimizer.step() was not called after backward(). Call it in each step of batches(): gradients are not accumulated over steps; "
    "use larger batches, or several backward() in a step"
)


def join(
    address: str | None = None, *, name: str | None = None, policy: Policy | None = None, **options: Any
) -> ElasticRun:
    """Prepares to join the run of the masters at ``address``, ``"host:port"`` or several separated by commas; by default those of
    ``RINGFOLD_MASTERS``. The replica joins with the first step of :meth:`ElasticRun.batches`, so that others do not wait while its
    model is built.

    ``name`` is the name of the replica in logs and errors. Other options are those of ``pccl.Communicator``. A replica of several
    ranks is started by ``torchrun``, and each of its ranks calls this; the default process group is made if there is none.
    """
    return ElasticRun(address, name, policy or Policy(), options)


class ElasticRun:
    """A replica of a run; see :func:`join`."""

    def __init__(
        self, address: str | None, name: str | None, policy: Policy, options: Mapping[str, Any]
    ) -> None:
        self.policy = policy
        self.replica = Replica()
        """The ranks of this replica."""
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._communicator = _communicator(address, self._name, self.replica, options)
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
        self._kinds: dict[str, str] = {}
        self._rng: dict[str, torch.Tensor] | None = None
        self._equality = Equality(self._compared, self._tensors, policy.check_every)
        self._warned: set[str] = set()
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
        self._is_committed = self._is_applied = False
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
        for argument, given, wanted in (
            ("model", model, torch.nn.Module),
            ("optimizer", optimizer, torch.optim.Optimizer),
        ):
            if not isinstance(given, wanted):
                text = f"must be one torch {wanted.__name__}, not a {type(given).__name__}"
                raise TypeError(f"invalid {argument}: {text} (a run has one model and one optimizer)")
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
            parts = (self._communicator, self.replica, self._stop, self._digests, self._before_outer_step)
            self._outer = OuterLoop(diloco, plain, optimizer, ledger, self.policy, *parts)
            plain = self._outer.module
            shared = (plain, self._outer.optimizer)
        prepare_optimizer(shared[1])
        tensors = {
            "model": dict(plain.named_parameters()),
            "optimizer": shared[1],
            "extra": extra or {},
        }
        self._state = State({key: value for key, value in tensors.items() if value})
        counted = f"{type(shared[1]).__name__} of {len(shared[1].param_groups)} groups"
        self._kinds = {"optimizer": counted, "scheduler": type(scheduler).__name__}
        self._kinds.update((f"buffer {name}", layout_of(buffer)) for name, buffer in plain.named_buffers())
        self._checkpoints = Checkpoints(self.replica, *shared)
        if diloco is not None:
            return
        buffers = [buffer for buffer in plain.buffers() if buffer.numel()]
        self._step = Step(
            self._communicator,
            self.replica,
            self._parameters,
            buffers,
            self.policy.batch,
            self._stop,
            self._digests,
            self._compare,
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
        numbers = LoaderNumbers()
        attempts = 0
        # Whether all replicas end their loops after the same step: only then they compare once more.
        ends_together = False
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
                with numbers.used() if self._with_rng else nullcontext():
                    drawn, drawn_by = batches.next(self._world), self._world
            is_behind = self._transfer is not None and self._transfer.is_behind
            self._is_committed = self._is_applied = False
            total = len(self._world) if self._sampler is None else sum(self._world.batch_sizes)
            self._rng = self._random_numbers() if self._with_rng and self._sampler is not None else None
            goes_on = until is None or self._number + 1 < until
            weight = 0.0 if is_behind else drawn.weight
            step.begin(self._world, weight, total, self._admission.wants_vote(), goes_on)
            try:
                with scaled_backward(self._model, drawn.share):
                    yield self._number, drawn.batch
            finally:
                step.end()
            if self._is_committed:
                attempts = 0
                ends_together = step.count is not None and not step.count.goes_on
                self._end_step(drawn)
                continue
            if step.count is None:
                raise RuntimeError(f"step {self._number} made no backward(): nothing was averaged")
            attempts += 1
            self._world = self._world.keep(step.count.contributed)
            if attempts >= self.policy.attempts:
                why = "" if self._is_applied else f": {_NOT_CALLED}"
                raise RuntimeError(f"step {self._number} was not committed in {attempts} attempts{why}")
        if self._outer is not None and self._is_connected:
            for count in self._outer.finish(self._number, lambda: self._world):
                self._note_stragglers(self._keep_living(count))
        if ends_together:
            self._compare_at_end()
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
            logger.info("connecting to the master at %s", self._communicator.address)
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
        assert self._state is not None
        layout = {part.name: part.layout for part in self._state.parts()} | self._kinds
        digest = digest_of(layout)

        def pack() -> tuple[Claim, torch.Tensor]:
            packed = small_state.pack(self._small_state())
            numbers = (self._number, self._revision, batch_size, packed.numel(), digest)
            return Claim(self.replica.id, self._standing, *numbers), packed

        # Newcomers have not warned: all look again together.
        self._warned.clear()
        is_done = False
        while not is_done:
            world, agreement, packed = self._admission.admit(pack, layout, has_voted)
            has_voted = False
            if set(world.ids) != set(self._world.ids) and self.replica.rank == 0:
                logger.info("replicas: %s", ", ".join(world.names))
                warn_of_equal_names(world.names)
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
            values.update(self._random_numbers())
        return values

    def _random_numbers(self) -> dict[str, torch.Tensor]:
        values = {"rng": torch.get_rng_state()}
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
            self._set_random_numbers(values)

    def _set_random_numbers(self, values: Mapping[str, torch.Tensor]) -> None:
        torch.set_rng_state(values["rng"])
        if "cuda_rng" in values and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.set_rng_state(values["cuda_rng"])

    # --- replicas that differ --------------------------------------------------------------------------------------

    def _compared(self) -> dict[str, Any]:
        """What is compared in each step, by category."""
        assert self._optimizer is not None
        optimizer = self._optimizer if self._outer is None else self._outer.optimizer
        values = {"step": self._number, "optimizer": small_state.settings_of(optimizer)}
        if self._scheduler is not None and self._outer is None:
            values["scheduler"] = self._scheduler.state_dict()
        if self._rng is not None:
            values["rng"] = self._rng
        return values

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        assert self._state is not None
        return [(part.name, torch.as_tensor(part.tensor)) for part in self._state.parts()]

    def _digests(self, is_last: bool = False) -> list[int]:
        is_behind = self._transfer is not None and self._transfer.is_behind
        return self._equality.digests(self._number, is_behind, is_last)

    def _before_outer_step(self, count: Count) -> None:
        self._finish_transfer()
        self._compare(count)

    def _compare_at_end(self) -> None:
        """Compares everything after the last step."""
        self._rng = None
        slots = len(self._world)
        ballot = Ballot(0.0, digests=self._digests(is_last=True))
        count = Count.of(self._admission.sum(ballot.vector(self._world.slot, slots)), slots)
        rows = self.replica.gather(count.differing)
        self._compare(replace(count, differing=tuple(map(any, zip(*rows, strict=True)))))

    def _compare(self, count: Count) -> None:
        """Stops with an error, or makes the replicas equal, if they differ in what has to be equal. All of them see the same
        differences."""
        found = {name for name, differs in zip(CATEGORIES, count.differing, strict=True) if differs}
        if found <= self._warned:
            return
        self._finish_transfer()
        world = self._world.keep(count.contributed)
        texts = self._admission.exchange(world, json.dumps(self._equality.details()).encode())
        told = [json.loads(text) if text else None for text in texts]
        known = [(each, name) for each, name in zip(told, world.names, strict=True) if each is not None]
        text = differences(*zip(*known, strict=True)) or "the other ranks of the replicas name the difference"
        message = f"step {self._number}: the replicas have diverged: {text}"
        if "step" in found:
            message += f" ({_NOT_CALLED})"
        if self.policy.on_divergence == "raise" or "step" in found:
            raise DivergenceError(message)
        logger.warning("%s", message)
        if self.policy.on_divergence == "warn":
            self._warned |= found
            return
        # Those that agree with most others on all of their ranks have the state.
        rows = self.replica.gather([-1 if each is None else told.index(each) for each in told])
        groups = list(zip(*rows, strict=True))
        chosen = max((group for group in groups if -1 not in group), key=groups.count)
        source, is_behind = groups.index(chosen), tuple(group != chosen for group in groups)
        mine = small_state.pack(self._small_state()).numpy().tobytes() if world.slot == source else b""
        packed = self._admission.exchange(world, mine)[source]
        if not packed:
            # It was lost: the next step finds the difference again.
            return
        if is_behind[world.slot]:
            self._load_small_state(small_state.unpack(torch.frombuffer(bytearray(packed), dtype=torch.uint8)))
        numbers = (self._revision + 1, world.batch_sizes, self._number, len(packed), Standing.MEMBER)
        self._transfer = self._begin_transfer(Agreement(source, is_behind, *numbers), is_behind[world.slot])
        self._finish_transfer()

    # --- the end of a step -----------------------------------------------------------------------------------------

    def _apply(self, optimizer_step: Any, named: dict[str, Any]) -> Any:
        """``optimizer.step()``: applied only if the step is committed."""
        self._is_applied = True
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
            if self._rng is not None and len({len(samples) for samples in drawn.assigned}) > 1:
                # Batches of different sizes may have drawn different numbers: all go on with the same ones.
                self._set_random_numbers(self._rng)
                torch.manual_seed(int(torch.randint(1 << 62, ())))
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


def _communicator(
    address: str | None, name: str, replica: Replica, options: Mapping[str, Any]
) -> pccl.Communicator:
    if replica.ranks == 1:
        return pccl.Communicator(address, name=name, **options)
    return pccl.Communicator(
        address,
        replica.rank,
        name=f"{name}/{replica.rank}",
        replica=(replica.id, replica.ranks),
        **options,
    )
