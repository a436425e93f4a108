"""The elastic training loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import pccl
from pccl._require import require_integer, require_seconds
from ringfold._settings import SettingValue
from ringfold.elastic.reduction import Operand, PendingReduction, ReductionResult, can_retry, reduce_one
from ringfold.elastic.state import State
from ringfold.elastic.stop_switch import Stopped, StopSwitch
from ringfold.elastic.wait_notice import WaitNotice, warn_of_equal_names

logger = logging.getLogger("ringfold")

# The maximum number of attempts of a vote or sync.
_VOTES_MAX = 10
# The poll interval while waiting for other peers.
_POLL_MIN_SECONDS = 0.2
_POLL_MAX_SECONDS = 1.0
# The poll interval if there are other groups, which need this peer's vote at each of their boundaries.
_POLL_OTHERS_SECONDS = 0.01
# How often a peer that the master removes joins again without a step in between.
_REJOINS_MAX = 5
# How long a peer that has joined again waits for others, if it would wait for ever.
_REJOIN_SECONDS = 60.0
# The kinds of errors of a rejected state, which are not retried.
_REJECTIONS = {
    "revision-increment-violation",
    "state-layout",
    "lost-election",
    "strategy-conflict",
    "no-state",
    "state-orphaned",
    "holders-lost",
}
# This package uses tags from here on; the user may use those below.
OWN_TAGS = 1 << 62


class StateRejected(pccl.PCCLError):
    """The run rejected this peer's state. The text says why, and what to do."""


@dataclass(frozen=True)
class _Hooks:
    settle: Callable[[Run], None] | None
    launch: Callable[[Run], None] | None
    finish: Callable[[Run], None] | None


class Run:
    """A peer of an elastic training run.

    ::

        import numpy as np, ringfold

        weights = np.zeros(8, np.float32)
        with ringfold.Run("127.0.0.1:48148", state={"weights": weights}) as run:
            for step in run.steps(until=100):
                gradient = compute(weights, step)
                run.average(gradient)
                weights -= 0.1 * gradient

    The ``with`` block connects to the master at ``address`` and waits until this peer is accepted; its end leaves the run.
    ``state`` is equal on all peers, bit for bit, at the begin of each step. It is a mapping from names to numpy arrays, torch
    tensors, modules (their parameters and buffers) and optimisers (their momenta and counters; see
    :func:`prepare_optimizer`), nested as needed; or a single module; or a list of ``pccl.TensorInfo``. It is written in
    place. Wrap a part in :class:`Unequal` if peers may differ in it.

    **The rule.** All peers of a group make the same calls of the run in the same order: the same steps, and in each step
    the same reductions. So a condition around ``average`` must be the same on all peers: it may depend on the step, the
    shared state, and results of reductions, never on the clock, local data, or a local random number. If peers disagree,
    calls fail with an error that names the peers. ``peers_min``, ``max_in_flight`` and ``optimize`` must be equal too.

    **Boundaries.** Before each step, waiting peers are accepted; while there are fewer than ``peers_min`` peers in the group,
    all wait; the state is synchronised, so that new peers receive it and the current step. A step that has begun is
    finished by the remaining peers, even by a single one.

    **A peer that the master removes**, since nobody heard it for too long, ends its step with its own data as the result of all
    reductions. Then it joins again with another ``communicator``, at most five times in a row, and gets the state of the others. One
    that an operator evicts does not.

    Arguments:
        address: the address of the master, ``"host:port"``; if there are several masters, all of them, separated by commas. By
            default ``RINGFOLD_MASTERS``.
        state: the shared state.
        peers_min: no step begins with fewer peers in the group.
        wait_timeout: the timeout in seconds of the wait for them (``TimeoutError``); ``None`` waits without a limit.
        revision: the first step of a new run: that of the checkpoint of ``state``.
        strategy: the strategy of the first sync (later ones use ``ENFORCE_POPULAR``). ``SEND_ONLY`` on the peer that has the
            checkpoint and ``RECEIVE_ONLY`` on all others restarts a run whose state is lost.
        optimize: measure the bandwidth between peers and optimise the ring when the membership has changed. For runs
            with one peer group.
        connect_attempts: how often to try to connect to the master, one second apart.
        handle_sigterm: on SIGTERM leave the run and end the loop (see :meth:`steps`), if the ``with`` block is
            entered on the main thread.
        max_in_flight: how many tensors of one call are reduced concurrently.
        peer_group, name, token, tls, p2p_connection_pool_size, listen_ports, bind, advertise, site, connect_timeout, max_upload,
            max_download, volunteer_relay, reproducible, resume, integrity, settings: as in ``pccl.Communicator``.

    The logger ``"ringfold"`` reports waits and changes of the world at level INFO.
    """

    def __init__(
        self,
        address: str | None = None,
        state: Any = None,
        *,
        peers_min: int = 2,
        wait_timeout: float | None = None,
        revision: int = 0,
        strategy: pccl.SharedStateSyncStrategy | None = None,
        optimize: bool = False,
        connect_attempts: int = 5,
        handle_sigterm: bool = True,
        max_in_flight: int = 8,
        peer_group: int = 0,
        name: str | None = None,
        token: str | None = None,
        tls: Sequence[str] | None = None,
        p2p_connection_pool_size: int = 0,
        listen_ports: int | tuple[int, int] | None = None,
        bind: str | None = None,
        advertise: str | Sequence[str] = (),
        site: int = 0,
        connect_timeout: float | None = None,
        max_upload: str | None = None,
        max_download: str | None = None,
        volunteer_relay: bool | None = None,
        reproducible: bool | None = None,
        resume: bool | None = None,
        integrity: str | None = None,
        settings: Mapping[str, SettingValue] | None = None,
    ) -> None:
        for what, number in (
            ("peers_min", peers_min),
            ("connect_attempts", connect_attempts),
            ("max_in_flight", max_in_flight),
        ):
            require_integer(number, what, 1)
        require_integer(revision, "revision", 0)
        require_seconds(wait_timeout, "wait_timeout", math.inf)
        self._state = State(state)
        self._new_communicator = partial(
            pccl.Communicator,
            address,
            peer_group,
            p2p_connection_pool_size,
            name=name,
            token=token,
            tls=tls,
            listen_ports=listen_ports,
            bind=bind,
            advertise=advertise,
            site=site,
            connect_timeout=connect_timeout,
            max_upload=max_upload,
            max_download=max_download,
            volunteer_relay=volunteer_relay,
            reproducible=reproducible,
            resume=resume,
            integrity=integrity,
            settings=settings,
        )
        self._communicator = self._new_communicator()
        self._address = self._communicator.address
        self._peer_group = peer_group
        self._peers_min = peers_min
        self._wait_timeout = wait_timeout
        self._revision = revision
        self._strategy = strategy
        self._optimize = optimize
        self._connect_attempts = connect_attempts
        self._handle_sigterm = handle_sigterm
        self._max_in_flight = max_in_flight
        self._switch = StopSwitch(self._leave)
        self._in_step = False
        # Whether steps() will reach another boundary.
        self._in_loop = False
        self._removed = False
        self._rejoins = 0
        self._hooks: list[_Hooks] = []
        self._synced: pccl.SharedStateSyncInfo | None = None
        self._entered = False
        self._just_connected = False
        self._is_newcomer = False
        self._world_seen = 0
        self._membership_changed = False
        self._warned_of_drift = False
        for member in self._state.members:
            at = {when: getattr(member, when, None) for when in ("settle", "launch", "finish")}
            self.at_boundary(**at)

    # Join and leave

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a Run cannot be entered twice: create another one to join again")
        self._entered = True
        if self._handle_sigterm:
            self._switch.install()
        try:
            logger.info("connecting to the master at %s", self._address)
            with self._switch.blocking():
                self._communicator.connect(self._connect_attempts)
        except Stopped:
            # The block runs without steps.
            self._switch.leave()
        except BaseException:
            self._switch.restore()
            raise
        else:
            self._just_connected = True
            logger.info(
                "joined the run as %s; the world size is %d", self._communicator.name, self.world_size
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        self._switch.end()
        logger.info("left the run at revision %d", self._revision)
        return isinstance(error, Stopped)

    def stop(self) -> None:
        """Ends :meth:`steps` at the next boundary. Only this peer leaves; the others continue.

        May be called from any thread and from signal handlers. (To end on all peers, ``break`` out of the loop on a
        condition that is the same on all.)
        """
        self._switch.requested = True

    # Properties

    @property
    def world_size(self) -> int:
        """The number of peers of the group, as of the last boundary or reduction."""
        return 0 if self._switch.left or self._removed else self._communicator.world_size

    @property
    def revision(self) -> int:
        """The number of the current or next step."""
        return self._revision

    @property
    def communicator(self) -> pccl.Communicator:
        """The communicator, for other calls. The rule applies to them too."""
        return self._communicator

    @property
    def synced(self) -> pccl.SharedStateSyncInfo | None:
        """The report of the last sync; ``None`` before the first one."""
        return self._synced

    @property
    def is_newcomer(self) -> bool:
        """Whether this is the first step of this peer, with a state or revision from others."""
        return self._is_newcomer

    @property
    def was_stopped(self) -> bool:
        """Whether SIGTERM or :meth:`stop` has ended, or will end, the run for this peer."""
        return self._switch.requested

    # Steps

    def steps(self, until: int | None = None) -> Generator[int, None, None]:
        """Yields the number of each step, which is the revision of the state, until it reaches ``until``.

        A new peer begins at the current step of the run. When the loop ends because of ``until``, this peer is still part of
        the run, and all peers may make further calls, such as a last evaluation. When it ends because of :meth:`stop` or
        SIGTERM, this peer has left, so that the others do not wait while it writes a checkpoint; further reductions then end
        the ``with`` block silently.

        SIGTERM during computation ends the loop at the next boundary. During a wait, in this method or a reduction, it ends
        the ``with`` block at once; ``was_stopped`` is then true. The others finish an interrupted step without this peer.

        ``break`` does not count the current step.
        """
        if not self._entered:
            raise RuntimeError("call steps() inside `with Run(...) as run:`")
        if self._in_step:
            raise RuntimeError(
                "steps() in a step of steps(): a run has one loop over its steps; end that one first"
            )
        self._in_loop = True
        while True:
            if self._synced is not None:
                self._call("settle")
            if self._removed:
                self._join_again()
            if self._switch.requested:
                self._switch.leave()
                return
            if until is not None and self._revision >= until:
                self._in_loop = False
                if self._synced is not None:
                    self._call("finish")
                return
            try:
                self._wait_for_peers()
                self._sync()
                if until is not None and self._revision >= until:
                    self._in_loop = False
                    return
                if self._optimize:
                    self._optimize_if_changed()
            except pccl.PCCLError as error:
                if not self._joins_after(error):
                    raise
                continue
            self._call("launch")
            self._in_step = True
            try:
                yield self._revision
            except GeneratorExit:
                self._in_loop = False
                raise
            finally:
                self._in_step = False
            self._is_newcomer = False
            if not self._removed:
                # The others made the step that this peer lost.
                self._revision += 1
                self._rejoins = 0

    def at_boundary(
        self,
        *,
        settle: Callable[[Run], None] | None = None,
        launch: Callable[[Run], None] | None = None,
        finish: Callable[[Run], None] | None = None,
    ) -> None:
        """Registers functions for boundaries, for reductions that stay in flight during a step.

        ``settle`` is called after each step, before any vote: it must wait for all operations in flight. ``launch`` is called
        after the sync, before the step. ``finish`` is called after the last ``settle`` if ``until`` is reached, on all peers.
        Each gets the run as its argument.

        Parts of the state that have a method ``shared_state()``, which returns their state, and methods of these names are
        registered automatically. :class:`ringfold.DiLoCo` is one.
        """
        self._hooks.append(_Hooks(settle, launch, finish))

    # Reductions

    def average(
        self,
        tensors: Any,
        *,
        weight: float | None = None,
        tag: int = 0,
        quantization: pccl.QuantizationOptions | None = None,
    ) -> ReductionResult:
        """Replaces a tensor, or each of several, by its mean over all peers of the group, in place.

        With a ``weight`` (on all peers or none; floats, not quantised) it is the weighted mean: the sum of weight x value
        over the sum of weights, for peers with different batch sizes. If all weights are 0 the result is NaN.

        See :meth:`reduce` for the effect of dying peers.
        """
        if weight is not None and quantization is not None:
            raise ValueError(
                "unsupported: a weighted mean with quantisation; pass a weight or a quantisation"
            )
        return self.reduce(tensors, op=pccl.ReduceOp.AVG, weight=weight, tag=tag, quantization=quantization)

    def sum(
        self, tensors: Any, *, tag: int = 0, quantization: pccl.QuantizationOptions | None = None
    ) -> ReductionResult:
        """Replaces a tensor, or each of several, by its sum over all peers of the group; see :meth:`reduce`."""
        return self.reduce(tensors, op=pccl.ReduceOp.SUM, tag=tag, quantization=quantization)

    def reduce(
        self,
        tensors: Any,
        *,
        op: pccl.ReduceOp = pccl.ReduceOp.SUM,
        into: Any = None,
        weight: float | None = None,
        tag: int = 0,
        quantization: pccl.QuantizationOptions | None = None,
    ) -> ReductionResult:
        """Reduces a tensor, or an iterable of tensors, over all peers of the group, in place or ``into`` others.

        If a peer dies, the remaining peers repeat the incomplete operations with their original data; the result then
        excludes the data and weight of the dead peer. **Every result is equal, bit for bit, on all peers.** For a single
        peer the result is its own data.

        If several tensors are reduced, the results of some may include the dead peer and those of others not:
        ``ReductionResult.worlds``, the same on all peers, shows it. This rarely matters for means, but may for sums. With
        ``into``, complete results are repeated, so that all have the same participants.

        Several tensors use consecutive tags from ``tag`` on. Tags matter only for concurrent calls, from several threads or
        with :meth:`reduce_async`: they must be different.
        """
        operands = _operands(tensors, into, tag, op, weight, quantization)
        if len(operands) == 1:
            with self._switch.blocking():
                reduced = reduce_one(self._communicator, operands[0])
            if reduced is not None:
                return reduced
        return self.start(operands).wait()

    def reduce_async(
        self,
        tensors: Any,
        *,
        op: pccl.ReduceOp = pccl.ReduceOp.SUM,
        into: Any = None,
        weight: float | None = None,
        tag: int = 0,
        quantization: pccl.QuantizationOptions | None = None,
    ) -> PendingReduction:
        """As :meth:`reduce`, but returns at once. Do not use the tensors before :meth:`PendingReduction.wait`, which all
        peers must call before the step ends."""
        return self.start(_operands(tensors, into, tag, op, weight, quantization))

    def start(self, operands: Sequence[Operand]) -> PendingReduction:
        """Starts the reduction of operands with individual options, for classes built on this one."""
        blocking = self._switch.blocking
        return PendingReduction(
            self._communicator, blocking, operands, self._max_in_flight, self._joins_after
        )

    # Boundaries

    def _joins_after(self, error: pccl.PCCLError) -> bool:
        """Whether this peer joins again after an error, at the next boundary: the master has removed it, and no operator did."""
        if error.kind != "removed" or self._switch.left or not self._in_loop:
            return False
        if not self._removed:
            if self._rejoins == _REJOINS_MAX:
                return False
            self._rejoins += 1
            logger.warning("this peer joins the run again (%d of %d): %s", self._rejoins, _REJOINS_MAX, error)
        self._removed = True
        return True

    def _leave(self) -> None:
        self._communicator.leave()

    def _join_again(self) -> None:
        self._leave()
        self._communicator = self._new_communicator()
        with self._switch.blocking(at_boundary=True):
            self._communicator.connect(self._connect_attempts)
        self._removed, self._just_connected = False, True
        self._synced = self._strategy = None

    def _call(self, when: str) -> None:
        for hooks in self._hooks:
            hook = getattr(hooks, when)
            if hook is not None:
                hook(self)

    def _wait_for_peers(self) -> None:
        """Accepts peers, and waits until there are enough. A peer that was just accepted continues with the sync, as the
        others do after their vote."""
        if not self._just_connected:
            self._update_topology()
        self._just_connected = False
        notice = WaitNotice()
        # The run of a peer that joins again may have ended.
        limit = self._wait_timeout if self._wait_timeout is not None or not self._rejoins else _REJOIN_SECONDS
        pause = _POLL_MIN_SECONDS
        while (world := self._communicator.world_size) < self._peers_min:
            text = "waiting for peers: %d of at least %d are in group %d at the master %s"
            notice.log(text, world, self._peers_min, self._peer_group, self._address)
            if limit is not None and notice.waited > limit:
                raise TimeoutError(
                    f"timed out after {limit:g} s waiting for {self._peers_min} peers: only {world} are in "
                    f"group {self._peer_group} at the master {self._address}"
                )
            with self._switch.blocking(at_boundary=True):
                time.sleep(pause if self._is_only_group() else _POLL_OTHERS_SECONDS)
            pause = min(pause * 1.5, _POLL_MAX_SECONDS)
            self._update_topology()
        if world != self._world_seen:
            logger.info("the world size is %d", world)
            warn_of_equal_names([member.name for member in self._communicator.members()])
            self._world_seen = world
            self._membership_changed = True

    def _update_topology(self) -> None:
        for attempt in range(1, _VOTES_MAX + 1):
            try:
                with self._switch.blocking(at_boundary=True):
                    return self._communicator.update_topology()
            except pccl.PCCLError as error:
                if not can_retry(error) or attempt == _VOTES_MAX:
                    raise
                logger.info("retrying the topology update: %s", error)
                self._pause(attempt)

    def _sync(self) -> None:
        shared = self._state.shared()
        shared.revision = offered = self._revision
        first = self._synced is None
        strategy = pccl.SharedStateSyncStrategy.ENFORCE_POPULAR
        if first and self._strategy is not None:
            strategy = self._strategy
        for attempt in range(1, _VOTES_MAX + 1):
            try:
                with self._switch.blocking(at_boundary=True):
                    synced = self._communicator.sync_shared_state(shared, strategy)
                break
            except pccl.PCCLError as error:
                if error.kind in _REJECTIONS:
                    raise StateRejected(
                        error.result, _why_rejected(error, offered, self._state), False, error.kind
                    ) from error
                if not can_retry(error) or attempt == _VOTES_MAX:
                    raise
                logger.info("retrying the sync of the state: %s", error)
                self._pause(attempt)
        self._synced = synced
        self._revision = shared.revision
        received = synced.rx_bytes > 0 or self._revision != offered
        self._is_newcomer = first and received
        if self._is_newcomer:
            logger.info("received %d bytes of state at revision %d", synced.rx_bytes, self._revision)
        elif synced.rx_bytes > 0 and not self._warned_of_drift:
            self._warned_of_drift = True
            logger.warning(
                "the state of this peer differed from that of the others: %d bytes were replaced",
                synced.rx_bytes,
            )

    def _optimize_if_changed(self) -> None:
        """Optimises the ring if any peer has seen a change. They agree by a reduction, because only some may have seen it:
        if one peer left and another joined, the world size is the same."""
        changed, self._membership_changed = self._membership_changed, False
        if self._communicator.world_size < 2:
            return
        if not self._is_only_group():
            logger.info("the ring is not optimised: the run has several groups, and all would have to vote")
            return
        flag = bytearray([changed])
        self.reduce(flag, op=pccl.ReduceOp.MAX, tag=OWN_TAGS)
        if not flag[0] or self._communicator.world_size < 2:
            return
        try:
            with self._switch.blocking():
                self._communicator.optimize_topology()
        except pccl.PCCLError as error:
            # A failed optimisation does not end the run.
            if not error.is_retryable and error.result != pccl.Result.INVALID_USAGE:
                raise
            logger.info("the ring was not optimised: %s", error)

    def _is_only_group(self) -> bool:
        return self._communicator.get_attribute(pccl.Attribute.NUM_DISTINCT_PEER_GROUPS) <= 1

    def _pause(self, attempt: int) -> None:
        with self._switch.blocking():
            time.sleep(min(0.05 * 2**attempt, 1.0))


def _operands(
    tensors: Any,
    into: Any,
    tag: int,
    op: pccl.ReduceOp,
    weight: float | None,
    quantization: pccl.QuantizationOptions | None,
) -> list[Operand]:
    sends = _each(tensors)
    recvs = sends if into is None else _each(into)
    if len(sends) != len(recvs):
        raise ValueError(f"invalid into: {len(recvs)} tensors for {len(sends)} inputs")
    pairs = enumerate(zip(sends, recvs, strict=True))
    return [Operand(send, recv, tag + index, op, weight, quantization) for index, (send, recv) in pairs]


def _each(tensors: Any) -> list[Any]:
    """A list of one tensor, or of the tensors of an iterable."""
    is_tensor = hasattr(tensors, "__dlpack__") or hasattr(tensors, "__array_interface__")
    if is_tensor or isinstance(tensors, bytearray | memoryview) or not isinstance(tensors, Iterable):
        return [tensors]
    return list(tensors)


def _why_rejected(error: pccl.PCCLError, offered: int, state: State) -> str:
    """The error text with a hint."""
    if error.kind == "revision-increment-violation":
        hint = (
            f"This peer has revision {offered}, ahead of the run. Start it with revision=0 to receive the state of the run, "
            "or restart the run from this peer's checkpoint."
        )
    elif error.kind == "state-layout":
        hint = f"{state.expected_and_actual(error.text)}: use the same program version."
    elif error.kind in ("state-orphaned", "holders-lost"):
        hint = (
            "No peer with the state is left. To continue from a checkpoint, start the peer that has it with "
            "strategy=SEND_ONLY and the revision of the checkpoint, and all others with strategy=RECEIVE_ONLY; or "
            "restart the master, with --recover newest to continue from the newest checkpoint by itself."
        )
    else:
        hint = "All peers that start together must use the same strategy."
    return f"the run rejected this peer's state: {error.text}. {hint}"
