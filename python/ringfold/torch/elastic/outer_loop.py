"""The boundaries of DiLoCo: when they come, what is in flight, and which samples count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pccl
import torch
from ringfold.elastic.run import OWN_TAGS
from ringfold.torch.elastic import small_state
from ringfold.torch.elastic.averages import Averages
from ringfold.torch.elastic.ballot import Ballot, Count
from ringfold.torch.elastic.buffers import Buffers
from ringfold.torch.elastic.diloco import DiLoCo
from ringfold.torch.elastic.ledger import SampleLedger
from ringfold.torch.elastic.outer import Fragment, fragments_of, outer_module
from ringfold.torch.elastic.policy import Policy
from ringfold.torch.elastic.replica import Replica
from ringfold.torch.elastic.shards import locals_of
from ringfold.torch.elastic.stop_request import StopRequest
from ringfold.torch.elastic.world import World

logger = logging.getLogger("ringfold")

# Each fragment has its own tags: the errors of quantisation are kept by tag.
_TAGS_PER_FRAGMENT = 1 << 16


@dataclass(frozen=True)
class _Flight:
    fragment: int
    step: int
    """In which it began."""


class OuterLoop:
    """Inner steps are counted, and at boundaries the progress of replicas is averaged."""

    def __init__(
        self,
        settings: DiLoCo,
        model: torch.nn.Module,
        inner_optimizer: torch.optim.Optimizer,
        ledger: SampleLedger | None,
        policy: Policy,
        communicator: pccl.Communicator,
        replica: Replica,
        stop: StopRequest,
        digests: Callable[[], Sequence[int]],
        before_outer_step: Callable[[Count], None],
    ) -> None:
        if policy.batch is not None:
            raise ValueError(f"invalid policy batch={policy.batch}: DiLoCo does not average gradients")
        self._settings, self._ledger, self._policy, self._replica = settings, ledger, policy, replica
        self._digests, self._before_outer_step = digests, before_outer_step
        self.module = outer_module(model)
        """The outer parameters, under the names of the model."""
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        inner, outer = ([m.get_parameter(name) for name in names] for m in (model, self.module))
        self.optimizer = settings.new_outer_optimizer(outer)
        """The outer optimiser."""
        self._buffers = Buffers(locals_of(buffer for buffer in model.buffers() if buffer.numel()))

        def fragment_of(number: int, members: range) -> Fragment:
            tag = OWN_TAGS + 1 + number * _TAGS_PER_FRAGMENT
            rest = (self._buffers, stop, tag, settings.quantization)
            return Fragment(
                [inner[i] for i in members],
                [outer[i] for i in members],
                replica,
                lambda buckets: Averages(communicator, replica, buckets, *rest),
            )

        groups = fragments_of([parameter.numel() for parameter in inner], settings.fragments)
        self._fragments = [fragment_of(number, members) for number, members in enumerate(groups)]
        self._inner_optimizer = inner_optimizer
        self._wrap(inner_optimizer)
        # The same on all replicas.
        self._last = 0
        self._turn = 0
        self._drawn: dict[int, list[int]] = {}
        self._drawn_before: dict[int, list[int]] = {}
        # Of this replica.
        self._flight: _Flight | None = None
        self._weight = 0.0
        self._seconds = 0.0
        self.is_open = False
        """Whether an inner step is being made."""

    # --- inner steps -----------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, weight: float) -> Iterator[None]:
        """An inner step with this many samples."""
        self._weight, self.is_open = weight, True
        began = time.monotonic()
        try:
            yield
        finally:
            self.is_open = False
        self._seconds += time.monotonic() - began

    def abstain(self) -> None:
        """This replica makes no inner step."""
        self._weight = 0.0

    def count(self, world: World, assigned: Sequence[Sequence[int]]) -> None:
        """Counts an inner step. ``assigned`` are the samples of all replicas."""
        for fragment in self._fragments:
            fragment.weight += self._weight
        if self._ledger is not None:
            self._ledger.draw(assigned)
            for replica, samples in zip(world.ids, assigned, strict=True):
                self._drawn.setdefault(replica, []).extend(samples)

    # --- boundaries ------------------------------------------------------------------------------------------------

    def settle(
        self, step: int, world: Callable[[], World], wants_vote: Callable[[], bool]
    ) -> Iterator[Count]:
        """Makes the outer steps that are due before this inner step. Replicas may vote afterwards: nothing is in flight then, unless
        nothing was yielded."""
        while True:
            if self._flight is None and (self._settings.delay == 0 or self._is_epoch_over()):
                self.launch(step, world(), wants_vote())
            if self._flight is None:
                return
            if step - self._flight.step < self._settings.delay and not self._is_due(step):
                return
            yield self._complete(step, world())

    def launch(self, step: int, world: World, wants_vote: bool) -> None:
        """Starts the reduction of the next fragment, if it is due and nothing is in flight."""
        if self._flight is None and self._is_due(step):
            self._start(self._turn % len(self._fragments), step, world, wants_vote)
            self._turn += 1

    def finish(self, step: int, world: Callable[[], World]) -> Iterator[Count]:
        """Applies what is in flight, and the progress in all fragments."""
        if self._flight is not None:
            yield self._complete(step, world())
        for fragment in range(len(self._fragments)):
            self._start(fragment, step, world(), False)
            yield self._complete(step, world())

    def _is_due(self, step: int) -> bool:
        return step - self._last >= self._settings.interval or self._is_epoch_over()

    def _is_epoch_over(self) -> bool:
        return self._ledger is not None and self._ledger.left == 0

    def _start(self, number: int, step: int, world: World, wants_vote: bool) -> None:
        fragment = self._fragments[number]
        fragment.start(Ballot(fragment.weight, self._seconds, wants_vote, digests=self._digests()), world)
        self._flight, self._last = _Flight(number, step), step
        self._drawn, self._drawn_before = {}, self._drawn
        self._seconds = 0.0

    def _complete(self, step: int, world: World) -> Count:
        assert self._flight is not None
        flight, self._flight = self._flight, None
        fragment = self._fragments[flight.fragment]
        count = fragment.averages.finish()
        self._before_outer_step(count)
        if count.weight > 0:
            if self._policy.not_finite == "step" or fragment.averages.is_finite():
                has_moved = step > flight.step
                fragment.apply(self.optimizer, has_moved)
                self._buffers.assign(has_moved and fragment.averages.weight > 0)
            else:
                self._skip(step, fragment)
        if self._ledger is not None:
            self._give_back(self._ledger, world, count)
        return count

    def _give_back(self, ledger: SampleLedger, world: World, count: Count) -> None:
        """Samples of replicas that were lost, or did not contribute, are used by others."""
        weights = dict(zip(world.ids, count.weights, strict=True))
        living = set(world.keep(count.contributed).ids)
        for replica, samples in self._drawn_before.items():
            if replica not in living or weights[replica] == 0:
                ledger.give_back(samples)
        self._drawn_before = {}
        for replica in [number for number in self._drawn if number not in living]:
            ledger.give_back(self._drawn.pop(replica))
        if not self._drawn:
            ledger.end_epoch()

    def _skip(self, step: int, fragment: Fragment) -> None:
        """The pseudo-gradient is not finite: no outer step, and all replicas go back to the outer parameters."""
        if self._policy.not_finite == "stop":
            raise FloatingPointError(f"step {step}: the averaged progress of the replicas is not finite")
        logger.warning("step %d: the averaged progress is not finite; the outer step is skipped", step)
        self.load()
        if self._replica.any(not fragment.has_finite_progress()):
            # Its moments are not finite, either.
            self._inner_optimizer.state.clear()

    # --- the state -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Sets the model to the outer parameters. Progress that was not averaged is lost."""
        for fragment in self._fragments:
            fragment.load()

    def state_dict(self) -> dict[str, Any]:
        """What a newcomer needs beside tensors."""
        drawn = {replica: list(samples) for replica, samples in self._drawn_before.items()}
        for replica, samples in self._drawn.items():
            drawn.setdefault(replica, []).extend(samples)
        settings = small_state.settings_of(self.optimizer)
        return {"last": self._last, "turn": self._turn, "drawn": drawn, "optimizer": settings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where another replica is."""
        self._last, self._turn, self._drawn = state["last"], state["turn"], dict(state["drawn"])
        small_state.set_settings(self.optimizer, state["optimizer"])

    def restart(self, step: int) -> None:
        """The state comes from a checkpoint, which has the outer parameters: what was done since then is done again."""
        self.load()
        self._last = step
        drawn, self._drawn = self._drawn, {}
        if self._ledger is not None:
            for samples in drawn.values():
                self._ledger.give_back(samples)

    def _wrap(self, optimizer: torch.optim.Optimizer) -> None:
        step = optimizer.step

        def step_with_samples(*arguments: Any, **named: Any) -> Any:
            has_none = self.is_open and self._weight == 0
            return None if has_none else step(*arguments, **named)

        optimizer.step = step_with_samples  # type: ignore[method-assign]
