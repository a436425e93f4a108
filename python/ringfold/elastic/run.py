"""The elastic training loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pccl
from ringfold.elastic.reducing import Operand, Reduced, Reducing, may_pass, reduce_one
from ringfold.elastic.state import State
from ringfold.elastic.stopping import Stopped, StopSwitch

logger = logging.getLogger("ringfold")

# Votes that fail are cast again so many times, a little later each time.
_VOTES_MAX = 10
# How often a peer that waits for others looks whether they have come.
_POLL_MIN_SECONDS = 0.2
_POLL_MAX_SECONDS = 1.0
# Other groups need this peer's vote at each of their boundaries, whether it waits or not; the vote waits for theirs.
_POLL_OTHERS_SECONDS = 0.01
# A wait that is longer than this is told even to those who have not asked for a log.
_PATIENCE_SECONDS = 30.0
# Kinds of errors that say that the state was rejected, which no retry cures here.
_REJECTIONS = {
    "revision-increment-violation",
    "state-layout",
    "lost-election",
    "strategy-conflict",
    "no-state",
    "state-orphaned",
    "holders-gone",
}
# Tags from here up are used by this package; those below are the user's.
OWN_TAGS = 1 << 62


class Rejected(pccl.PCCLError):
    """The run did not take this peer's state. The text says why, and what can be done about it."""


@dataclass(frozen=True)
class _Hooks:
    settle: Callable[[Run], None] | None
    launch: Callable[[Run], None] | None
    finish: Callable[[Run], None] | None


class Run:
    """One peer's part in an elastic training run.

    ::

        import numpy as np, ringfold

        weights = np.zeros(8, np.float32)
        with ringfold.Run("127.0.0.1:48148", state={"weights": weights}) as run:
            for step in run.steps(until=100):
                gradient = compute(weights, step)
                run.average(gradient)
                weights -= 0.1 * gradient

    Entering the ``with`` block connects to the master at ``address`` and waits until the peers of the run have let this
    one in; leaving it says goodbye. ``state`` is what all peers must agree on, bit for bit, at the begin of each step:
    a mapping from names to numpy arrays, torch tensors, modules (their parameters and buffers) and optimisers (their
    momenta and counters; see :func:`prepare_optimizer`), nested as you like; or a single module; or a list of
    ``pccl.TensorInfo``. It is written in place. Wrap a part in :class:`Unequal` if peers may differ in it.

    **The one rule.** All peers of a group make the same calls of the run in the same order: the same steps, and in each
    step the same reductions. A condition around ``average`` must therefore come out the same on all of them: it may
    depend on the step, on the shared state, and on results of reductions, which are equal on all peers; never on the
    clock, on local data, or on a local random number. If peers disagree, calls fail, with an error that says who waits
    for what. ``peers_min``, ``max_in_flight`` and ``optimize`` belong to this rule too.

    **What happens at a boundary**, that is, before each step: peers that wait to join are let in; while there are fewer
    than ``peers_min`` in the group, everybody waits; the state is synchronised, so that newcomers receive it, along with
    the step they are in. A step that was begun with enough peers is finished with whoever is left, also alone.

    Arguments:
        address: where the master is, ``"host:port"``.
        state: what is shared.
        peers_min: below this number of peers in the group, no step begins.
        wait_timeout: how many seconds to wait for them before ``TimeoutError``; ``None`` waits for as long as it takes.
        revision: the step to begin with, if nobody has begun yet: that of the checkpoint that ``state`` comes from.
        strategy: the strategy of the first sync (later ones enforce what is popular). ``SEND_ONLY`` on the peer that has the
            checkpoint and ``RECEIVE_ONLY`` on all others brings a run back whose last holders are all gone.
        optimize: measure the ways between peers and reorder the ring when the membership has changed. For runs with
            one peer group.
        connect_attempts: how often to try to reach the master, a second apart.
        handle_sigterm: on SIGTERM leave the run and end the loop (see :meth:`steps`), if the ``with`` block is
            entered on the main thread.
        max_in_flight: how many tensors of one call are reduced at the same time.
        peer_group, name, token, p2p_connection_pool_size, listen_ports, bind, advertise, site, connect_timeout: as of
            ``pccl.Communicator``.

    The logger ``"ringfold"`` tells at level INFO who is waited for and how the world changes.
    """

    def __init__(
        self,
        address: str,
        state: Any,
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
        p2p_connection_pool_size: int = 0,
        listen_ports: int | tuple[int, int] | None = None,
        bind: str | None = None,
        advertise: str | Sequence[str] = (),
        site: int = 0,
        connect_timeout: float | None = None,
    ) -> None:
        if peers_min < 1:
            raise ValueError(f"peers_min is at least 1, and not {peers_min}")
        if revision < 0:
            raise ValueError(f"revisions begin at 0; {revision} is none")
        self._state = State(state)
        self._communicator = pccl.Communicator(
            address,
            peer_group,
            p2p_connection_pool_size,
            name=name,
            token=token,
            listen_ports=listen_ports,
            bind=bind,
            advertise=advertise,
            site=site,
            connect_timeout=connect_timeout,
        )
        self._address = address
        self._peer_group = peer_group
        self._peers_min = peers_min
        self._wait_timeout = wait_timeout
        self._revision = revision
        self._strategy = strategy
        self._optimize = optimize
        self._connect_attempts = connect_attempts
        self._handle_sigterm = handle_sigterm
        self._max_in_flight = max_in_flight
        self._switch = StopSwitch(self._communicator.leave)
        self._hooks: list[_Hooks] = []
        self._synced: pccl.SharedStateSyncInfo | None = None
        self._entered = False
        self._just_connected = False
        self._is_newcomer = False
        self._world_seen = 0
        self._membership_changed = False
        self._told_of_drift = False
        for member in self._state.members:
            at = {when: getattr(member, when, None) for when in ("settle", "launch", "finish")}
            self.at_boundary(**at)

    # Life

    def __enter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a Run is entered once; make another one to join again")
        self._entered = True
        if self._handle_sigterm:
            self._switch.install()
        try:
            logger.info("connecting to the master at %s", self._address)
            with self._switch.blocking():
                self._communicator.connect(self._connect_attempts)
        except Stopped:
            # There is no block yet to leave early: its steps end before the first one.
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
        """Ends :meth:`steps` at the next boundary. This peer alone leaves; the others go on without it.

        May be called from any thread and from signal handlers. (To end on all peers at once, ``break`` out of the loop
        on all of them, on a condition that is the same everywhere.)
        """
        self._switch.requested = True

    # What it knows

    @property
    def world_size(self) -> int:
        """How many peers the group has, this one included; as of the last boundary or failed reduction."""
        return 0 if self._switch.left else self._communicator.world_size

    @property
    def revision(self) -> int:
        """The number of the step that runs, or that comes next."""
        return self._revision

    @property
    def communicator(self) -> pccl.Communicator:
        """The communicator beneath, for all that this class has no call for. The one rule holds for it too."""
        return self._communicator

    @property
    def synced(self) -> pccl.SharedStateSyncInfo | None:
        """What the last sync moved; ``None`` before the first one."""
        return self._synced

    @property
    def is_newcomer(self) -> bool:
        """Whether this is the first step here and the state, or the revision, came from others."""
        return self._is_newcomer

    @property
    def was_stopped(self) -> bool:
        """Whether SIGTERM or :meth:`stop` has ended the run for this peer, or will at the next boundary."""
        return self._switch.requested

    # Steps

    def steps(self, until: int | None = None) -> Generator[int, None, None]:
        """Yields the number of each step, which is the revision of the state, until it reaches ``until``.

        A newcomer does not begin at 0: its first step is the one that the others are in. When the loop ends because of
        ``until``, this peer is still part of the run, and all peers may make further calls together, a last evaluation
        perhaps. When it ends because of :meth:`stop` or SIGTERM, this peer has left, so that nobody waits for it while it
        writes a checkpoint; further reductions then end the ``with`` block silently.

        SIGTERM while this peer computes ends the loop at the next boundary. While it waits for others, within this
        method or a reduction, the wait is given up, the ``with`` block is left at once, and the program goes on behind
        it. ``was_stopped`` tells. In the middle of a reduction the step is then only half done, and the others finish it
        without this peer.

        A loop that is left by ``break`` does not count the step it was in.
        """
        if not self._entered:
            raise RuntimeError("steps() are taken inside of `with Run(...) as run:`")
        while True:
            if self._synced is not None:
                self._call("settle")
            if self._switch.requested:
                self._switch.leave()
                return
            if until is not None and self._revision >= until:
                if self._synced is not None:
                    self._call("finish")
                return
            self._gather()
            self._sync()
            if until is not None and self._revision >= until:
                return
            if self._optimize:
                self._optimize_if_changed()
            self._call("launch")
            yield self._revision
            self._is_newcomer = False
            self._revision += 1

    def at_boundary(
        self,
        *,
        settle: Callable[[Run], None] | None = None,
        launch: Callable[[Run], None] | None = None,
        finish: Callable[[Run], None] | None = None,
    ) -> None:
        """Has functions called around boundaries, for reductions that stay in flight while a step computes.

        ``settle`` is called after each step, before the peers vote on anything: it must wait for all that is in flight.
        ``launch`` is called when the state has been synchronised, before the step. ``finish`` is called after the last
        ``settle`` if ``until`` is reached, on all peers together. Each gets the run as its argument.

        Parts of the state that have a method ``shared_state()`` (which returns what they share) and methods of these
        names need not be registered: the run finds them. :class:`ringfold.DiLoCo` is one.
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
    ) -> Reduced:
        """Replaces a tensor, or each of several, by its mean over all peers of the group. In place.

        With a ``weight`` (on all peers or on none; floats, not quantised) it is the weighted mean: the sum of weight x
        value over the sum of weights. Peers with different batch sizes give theirs. A weight of 0 is one that does not
        count; if all are 0 the result is not a number.

        See :meth:`reduce` for what happens when peers die.
        """
        if weight is not None and quantization is not None:
            raise ValueError("a weighted mean can't be quantised: give a weight or a quantisation")
        return self.reduce(tensors, op=pccl.ReduceOp.AVG, weight=weight, tag=tag, quantization=quantization)

    def sum(
        self, tensors: Any, *, tag: int = 0, quantization: pccl.QuantizationOptions | None = None
    ) -> Reduced:
        """Replaces a tensor, or each of several, by its sum over all peers of the group. In place; see :meth:`reduce`."""
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
    ) -> Reduced:
        """Reduces a tensor, or several (any iterable of them), over all peers of the group; in place, or ``into`` others.

        If a peer dies meanwhile, what was not complete is done again by those who are left, from the data that each of
        them brought; the dead peer's data is then not part of the result, nor is its weight. **Every result is equal,
        bit for bit, on all peers.** A peer that is alone has its own data as the result.

        Of several tensors, some may have been complete when the peer died: these results are of more peers than the
        others. ``Reduced.worlds`` tells, the same on all peers. For means that seldom matters; for sums it may. With
        ``into``, the complete ones are done again, so that all results are of the same peers.

        Several tensors take the tags from ``tag`` on, one each. Tags matter only if calls overlap, from several threads
        or with :meth:`reduce_async`: then these must not share one.
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
    ) -> Reducing:
        """As :meth:`reduce`, but returns at once. The tensors must be left alone, and :meth:`Reducing.wait` be called on
        all peers before the step ends."""
        return self.start(_operands(tensors, into, tag, op, weight, quantization))

    def start(self, operands: Sequence[Operand]) -> Reducing:
        """Starts to reduce operands that differ in more than their tags, for those who build upon this class."""
        return Reducing(self._communicator, self._switch.blocking, operands, self._max_in_flight)

    # Boundaries

    def _call(self, when: str) -> None:
        for hooks in self._hooks:
            hook = getattr(hooks, when)
            if hook is not None:
                hook(self)

    def _gather(self) -> None:
        """Lets newcomers in, and waits until there are enough peers. Whoever has just been let in himself finds the
        others behind their vote, on the way to the sync."""
        if not self._just_connected:
            self._update_topology()
        self._just_connected = False
        began = time.monotonic()
        told = 0
        pause = _POLL_MIN_SECONDS
        while (world := self._communicator.world_size) < self._peers_min:
            waited = time.monotonic() - began
            if told == 0 or (told == 1 and waited > _PATIENCE_SECONDS):
                level = logging.WARNING if told else logging.INFO
                words = "waiting for peers: %d of at least %d are in group %d at the master %s"
                logger.log(level, words, world, self._peers_min, self._peer_group, self._address)
                told += 1
            if self._wait_timeout is not None and waited > self._wait_timeout:
                raise TimeoutError(
                    f"only {world} of {self._peers_min} peers came within {self._wait_timeout:g} s to group "
                    f"{self._peer_group} at the master {self._address}"
                )
            with self._switch.blocking(at_boundary=True):
                time.sleep(pause if self._is_only_group() else _POLL_OTHERS_SECONDS)
            pause = min(pause * 1.5, _POLL_MAX_SECONDS)
            self._update_topology()
        if world != self._world_seen:
            logger.info("the world size is %d", world)
            self._world_seen = world
            self._membership_changed = True

    def _update_topology(self) -> None:
        for attempt in range(1, _VOTES_MAX + 1):
            try:
                with self._switch.blocking(at_boundary=True):
                    return self._communicator.update_topology()
            except pccl.PCCLError as error:
                if not may_pass(error) or attempt == _VOTES_MAX:
                    raise
                logger.info("the vote on who takes part is cast again: %s", error)
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
                    raise Rejected(error.result, _why_rejected(error, offered), False, error.kind) from error
                if not may_pass(error) or attempt == _VOTES_MAX:
                    raise
                logger.info("the state is synchronised once more: %s", error)
                self._pause(attempt)
        self._synced = synced
        self._revision = shared.revision
        received = synced.rx_bytes > 0 or self._revision != offered
        self._is_newcomer = first and received
        if self._is_newcomer:
            logger.info("received %d bytes of state at revision %d", synced.rx_bytes, self._revision)
        elif synced.rx_bytes > 0 and not self._told_of_drift:
            self._told_of_drift = True
            words = (
                "the state of this peer had become different from that of the others: %d bytes were replaced"
            )
            logger.warning(words, synced.rx_bytes)

    def _optimize_if_changed(self) -> None:
        """All peers must agree on whether to measure, and only some of them may have seen a change: if one left and
        another came, world sizes are as before. So they ask each other."""
        changed, self._membership_changed = self._membership_changed, False
        if self._communicator.world_size < 2:
            return
        if not self._is_only_group():
            logger.info(
                "the ring is not optimised: groups are at different steps, and all of them would have to vote"
            )
            return
        flag = bytearray([changed])
        self.reduce(flag, op=pccl.ReduceOp.MAX, tag=OWN_TAGS)
        if not flag[0] or self._communicator.world_size < 2:
            return
        try:
            with self._switch.blocking():
                self._communicator.optimize_topology()
        except pccl.PCCLError as error:
            # A ring that is not the best is no reason to stop.
            if not error.is_retryable and error.result != pccl.Result.INVALID_USAGE:
                raise
            logger.info("the ring stays as it is: %s", error)

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
        raise ValueError(f"{len(sends)} tensors can't be reduced into {len(recvs)}")
    pairs = enumerate(zip(sends, recvs, strict=True))
    return [Operand(send, recv, tag + place, op, weight, quantization) for place, (send, recv) in pairs]


def _each(tensors: Any) -> list[Any]:
    """One tensor, or all of an iterable that is not one itself."""
    is_tensor = hasattr(tensors, "__dlpack__") or hasattr(tensors, "__array_interface__")
    if is_tensor or isinstance(tensors, bytearray | memoryview) or not isinstance(tensors, Iterable):
        return [tensors]
    return list(tensors)


def _why_rejected(error: pccl.PCCLError, offered: int) -> str:
    """The same in plain words, with what to do about it."""
    if error.kind == "revision-increment-violation":
        hint = (
            f"This peer came with revision {offered}, ahead of the run. Start it with revision=0 to take over the state "
            "that the run has, or restart the run from this peer's checkpoint."
        )
    elif error.kind == "state-layout":
        hint = (
            "This peer's state has other names, shapes or types than that of the run: it is another program, or another "
            "version of it."
        )
    elif error.kind in ("state-orphaned", "holders-gone"):
        hint = (
            "Nobody who has the state is left. To go on from a checkpoint, start the peer that has it with "
            "strategy=SEND_ONLY and the revision of the checkpoint, and all others with strategy=RECEIVE_ONLY; or "
            "restart the master."
        )
    else:
        hint = "All peers that begin together must use the same strategy."
    return f"the run did not take this peer's state: {error.text}. {hint}"
