"""Peers of a run as Ray actors: Ray places them and starts lost ones again, Ringfold connects them.

::

    import ringfold.ray

    def train(peer, steps):
        run = elastic.join(peer.masters, name=peer.name)
        ...
        return loss

    losses = ringfold.ray.run(train, peers=4, kwargs={"steps": 1000}, resources={"CPU": 4, "GPU": 1})

The package ``ray`` is imported by :func:`run`, and has to be installed with ``ringfold`` on all machines of the cluster.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TypeVar

import pccl

__all__ = ["PeerContext", "PeerError", "run"]

T = TypeVar("T")
logger = logging.getLogger("ringfold")

PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
# How often reports are fetched.
_POLL_SECONDS = 0.5
# A peer that has not started by then is named in a warning.
_WARN_AFTER_SECONDS = 30.0
# How long a master that was restarted tries to listen: its predecessor may still have the port.
_LISTEN_SECONDS = 20.0
_CALL_SECONDS = 10.0
_TOKEN = "PCCL_JOIN_TOKEN"


class PeerError(RuntimeError):
    """A peer failed: its function raised an exception, which is the cause, or Ray does not start it again."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number
        """The number of the peer."""


@dataclass(frozen=True)
class PeerContext:
    """The first argument of a peer's function."""

    number: int
    """The number of this peer, from 0. It keeps it when Ray starts it again."""
    peers: int
    """How many peers were asked for."""
    name: str
    """A name for logs and errors."""
    masters: str
    """The address for ``elastic.join``, ``ringfold.Run`` or ``pccl.Communicator``. Also in ``RINGFOLD_MASTERS``."""
    is_restarted: bool
    """Whether Ray has started this peer again after it was lost."""
    _monitor: Any = field(default=None, repr=False)

    def report(self, value: Any) -> None:
        """Sends a value to ``on_report`` of :func:`run`. Does not wait; a report may be lost with a machine."""
        self._monitor.put.remote(self.number, value)


def run(
    function: Callable[..., T],
    peers: int,
    *,
    masters: int | str = 1,
    kwargs: Mapping[str, Any] | None = None,
    resources: Mapping[str, float] | None = None,
    max_restarts: int = -1,
    placement: str | None = None,
    start_timeout: float = 120.0,
    timeout: float | None = None,
    on_report: Callable[[int, Any], None] | None = None,
    name: str | None = None,
) -> list[T]:
    """Calls ``function(peer, **kwargs)`` in this many Ray actors. Returns the results, in the order of the peers' numbers.

    An actor that is lost, with its process or its machine, is started again by Ray and calls the function again, which joins
    the run and receives the state from the others. An exception is not repeated: all peers are ended, and :class:`PeerError` names
    the first that failed.

    Arguments:
        function: gets a :class:`PeerContext`. It is sent to the machines by Ray.
        peers: how many.
        masters: how many masters to start, on different machines if there are enough; with several the run survives the loss of a
            machine with a master. Or the address of masters that run already, separated by commas.
        kwargs: further arguments of the function.
        resources: what each peer needs, as Ray names it: ``CPU``, ``GPU``, ``memory`` and custom ones; ``{"CPU": 1}`` by default.
        max_restarts: how often each peer is started again; -1 is without a limit.
        placement: ``None`` starts each peer where and when there is room for it. ``"PACK"``, ``"SPREAD"``, ``"STRICT_PACK"`` and
            ``"STRICT_SPREAD"`` reserve room for all of them first, in a placement group of Ray.
        start_timeout: seconds until the masters and the placement group are there (``TimeoutError``).
        timeout: seconds until all results are there (``TimeoutError``); ``None`` waits without a limit.
        on_report: called with the number of a peer and the value of each :meth:`PeerContext.report`, in this process.
        name: the actors are named ``name/peer-0``, ``name/master-0`` and so on, for ``ray.get_actor``.

    Masters that are started here need a token, which their peers get in ``PCCL_JOIN_TOKEN``: that of this process, or a new one.
    """
    _check(peers, masters, max_restarts, placement)
    ray = _import_ray()
    if not ray.is_initialized():
        ray.init()
    launch = _Launch(ray, name or f"ringfold-{secrets.token_hex(4)}", peers, start_timeout)
    with launch.ended():
        address, variables = launch.start_masters(masters)
        calls = launch.start_peers(
            function,
            address,
            variables,
            dict(kwargs or {}),
            dict(resources or {"CPU": 1}),
            max_restarts,
            placement,
        )
        return launch.results(calls, timeout, on_report or (lambda _number, _value: None))


def _check(peers: int, masters: int | str, max_restarts: int, placement: str | None) -> None:
    if peers < 1:
        raise ValueError(f"invalid peers {peers}: must be at least 1")
    if not masters or (isinstance(masters, int) and masters < 1):
        raise ValueError(f"invalid masters {masters!r}: must be a number from 1 on, or an address")
    if max_restarts < -1:
        raise ValueError(f"invalid max_restarts {max_restarts}: must be at least -1")
    if placement is not None and placement not in PLACEMENTS:
        raise ValueError(f"invalid placement {placement!r}: must be None or one of {', '.join(PLACEMENTS)}")


def _import_ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise ImportError("ringfold.ray needs the package ray: pip install ray") from error


class _Launch:
    """The actors of one call of :func:`run`."""

    def __init__(self, ray: Any, name: str, peers: int, start_timeout: float) -> None:
        self._ray, self._name, self._peers = ray, name, peers
        self._start_timeout = start_timeout
        self._strategies = import_module("ray.util.scheduling_strategies")
        self._actors: list[Any] = []
        self._group: Any = None
        self._resources: dict[str, float] = {}
        self._monitor = self._start(_Monitor, "monitor", num_cpus=0, max_restarts=-1, max_task_retries=0)
        self._started: set[int] = set()

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Ends all actors afterwards, also on Ctrl-C."""
        try:
            yield
        finally:
            # The masters last: peers would wait for them.
            for actor in reversed(self._actors):
                with suppress(self._ray.exceptions.RayError):
                    self._ray.kill(actor, no_restart=True)
            if self._group is not None:
                import_module("ray.util").remove_placement_group(self._group)

    def _start(self, kind: type, name: str, *arguments: Any, **options: Any) -> Any:
        actor = self._ray.remote(kind).options(name=f"{self._name}/{name}", **options).remote(*arguments)
        self._actors.append(actor)
        return actor

    # --- masters -----------------------------------------------------------------------------------------------------

    def start_masters(self, masters: int | str) -> tuple[str, dict[str, str]]:
        """The address of the masters, and the variables of the peers."""
        token = os.environ.get(_TOKEN)
        if isinstance(masters, str):
            return masters, {"RINGFOLD_MASTERS": masters, **({_TOKEN: token} if token else {})}
        token = token or secrets.token_hex(32)
        nodes = self._nodes()
        if masters > max(1, len(nodes)):
            logger.warning("%d masters share %d machines: they may be lost together", masters, len(nodes))
        chosen = [nodes[number % len(nodes)] for number in range(masters)]
        # An actor that is started again has to listen at the same address, so it stays on its machine, and its port is known before.
        stays = [
            self._strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in chosen
        ]
        hosts = [node["NodeManagerAddress"] for node in chosen]
        find = self._ray.remote(_free_ports)
        ports = self._get(
            [
                find.options(num_cpus=0, scheduling_strategy=stay).remote(host, masters)
                for host, stay in zip(hosts, stays)
            ],
            "the machines of the masters do not answer",
        )
        addresses = [_joined(host, ports[number][number]) for number, host in enumerate(hosts)]
        started = [
            self._start(
                *(_Master, f"master-{number}", addresses, number, token),
                **{"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": stay},
            )
            for number, stay in enumerate(stays)
        ]
        self._get([master.address.remote() for master in started], "the masters have not started")
        text = ",".join(addresses)
        logger.info("masters at %s", text)
        return text, {"RINGFOLD_MASTERS": text, _TOKEN: token}

    def _nodes(self) -> list[dict[str, Any]]:
        """The living machines, this one first."""
        here = self._ray.get_runtime_context().get_node_id()
        return sorted((n for n in self._ray.nodes() if n["Alive"]), key=lambda node: node["NodeID"] != here)

    def _get(self, calls: Sequence[Any], failure: str) -> list[Any]:
        try:
            return list(self._ray.get(calls, timeout=self._start_timeout))
        except self._ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(f"{failure} after {self._start_timeout} s") from error

    # --- peers -------------------------------------------------------------------------------------------------------

    def start_peers(
        self,
        function: Callable[..., Any],
        address: str,
        variables: dict[str, str],
        kwargs: dict[str, Any],
        resources: dict[str, float],
        max_restarts: int,
        placement: str | None,
    ) -> list[Any]:
        """The calls of the function."""
        self._resources = resources
        options = {"max_restarts": max_restarts, "max_task_retries": max_restarts, **_options_of(resources)}
        options["scheduling_strategy"] = "SPREAD"
        if placement is not None:
            self._group = self._reserve(placement)
        calls = []
        for number in range(self._peers):
            if self._group is not None:
                strategy = self._strategies.PlacementGroupSchedulingStrategy(self._group, number)
                options["scheduling_strategy"] = strategy
            context = PeerContext(number, self._peers, f"peer-{number}", address, False, self._monitor)
            peer = self._start(_Peer, context.name, variables, **options)
            calls.append(peer.work.remote(function, context, kwargs))
        return calls

    def _reserve(self, placement: str) -> Any:
        group = import_module("ray.util").placement_group([self._resources] * self._peers, strategy=placement)
        if not group.wait(self._start_timeout):
            import_module("ray.util").remove_placement_group(group)
            raise TimeoutError(
                f"no room for {self._needs(self._peers)} with placement {placement} after {self._start_timeout} s"
            )
        return group

    def _needs(self, peers: int) -> str:
        """What some peers need and the cluster has."""
        has = self._ray.cluster_resources()
        return f"{peers} peers that need {self._resources} each: the cluster has " + ", ".join(
            f"{has.get(kind, 0):g} {kind}" for kind in self._resources
        )

    def results(
        self, calls: Sequence[Any], timeout: float | None, on_report: Callable[[int, Any], None]
    ) -> list[Any]:
        """Waits for all results."""
        begin = time.monotonic()
        results: dict[int, Any] = {}
        numbers = {call: number for number, call in enumerate(calls)}
        has_warned = False
        while numbers:
            done, _ = self._ray.wait(list(numbers), timeout=_POLL_SECONDS)
            self._take_reports(on_report)
            for call in done:
                number = numbers.pop(call)
                results[number] = self._result(number, call)
            elapsed = time.monotonic() - begin
            if numbers and timeout is not None and elapsed > timeout:
                raise TimeoutError(f"timed out after {timeout} s waiting for {_names(numbers.values())}")
            missing = [number for number in numbers.values() if number not in self._started]
            if missing and elapsed > _WARN_AFTER_SECONDS and not has_warned:
                has_warned = True
                logger.warning("no room yet for %s of %s", _names(missing), self._needs(self._peers))
        self._take_reports(on_report)
        return [results[number] for number in range(self._peers)]

    def _result(self, number: int, call: Any) -> Any:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise PeerError(number, f"peer-{number} failed: {error.cause or error}") from error
        except self._ray.exceptions.RayError as error:
            raise PeerError(number, f"peer-{number} was lost, and is not started again: {error}") from error

    def _take_reports(self, on_report: Callable[[int, Any], None]) -> None:
        try:
            reports = self._ray.get(self._monitor.take.remote(), timeout=_CALL_SECONDS)
        except self._ray.exceptions.RayError:
            return  # It is being restarted.
        for number, value in reports:
            if not isinstance(value, _Started):
                on_report(number, value)
                continue
            if number in self._started:
                logger.warning("peer-%d was lost: Ray has started it again on %s", number, value.host)
            else:
                logger.info("peer-%d has started on %s", number, value.host)
            self._started.add(number)


def _options_of(resources: Mapping[str, float]) -> dict[str, Any]:
    """The options of an actor that needs this."""
    known = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {known[kind]: number for kind, number in resources.items() if kind in known}
    others = {kind: number for kind, number in resources.items() if kind not in known}
    return {"num_cpus": 0, **options, **({"resources": others} if others else {})}


def _names(numbers: Any) -> str:
    return ", ".join(f"peer-{number}" for number in sorted(numbers))


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- what runs on the machines ---------------------------------------------------------------------------------------


def _free_ports(host: str, count: int) -> list[int]:
    """Ports of this machine that are free now, all different."""
    probes = [socket.create_server((host, 0), family=_family(host)) for _ in range(count)]
    try:
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@dataclass(frozen=True)
class _Started:
    """The first report of a peer."""

    host: str


class _Monitor:
    """Keeps the reports of the peers until they are fetched."""

    def __init__(self) -> None:
        self._reports: list[tuple[int, Any]] = []

    def put(self, number: int, value: Any) -> None:
        self._reports.append((number, value))

    def take(self) -> list[tuple[int, Any]]:
        reports, self._reports = self._reports, []
        return reports


class _Master:
    """A master. When Ray starts it again, it listens at the same address."""

    def __init__(self, addresses: Sequence[str], number: int, token: str) -> None:
        listed = {"masters": list(addresses), "this_master": number + 1} if len(addresses) > 1 else {}
        deadline = time.monotonic() + _LISTEN_SECONDS
        while True:
            self._node = pccl.MasterNode(addresses[number], token=token, **listed)  # type: ignore[arg-type]
            try:
                self._node.run()
                return
            except pccl.PCCLError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def address(self) -> str:
        return self._node.address


class _Peer:
    """A peer."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        os.environ.update(variables)

    def work(self, function: Callable[..., T], context: PeerContext, kwargs: Mapping[str, Any]) -> T:
        with warnings.catch_warnings():
            # Ray warns of a name that it uses itself here.
            warnings.simplefilter("ignore", DeprecationWarning)
            is_restarted = import_module("ray").get_runtime_context().was_current_actor_reconstructed
        context = replace(context, is_restarted=bool(is_restarted))
        context.report(_Started(socket.gethostname()))
        return function(context, **kwargs)
