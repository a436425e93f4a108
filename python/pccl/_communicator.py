"""A peer of a run."""

from __future__ import annotations

import asyncio
import atexit
import time
import weakref
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from pccl._descriptors import (
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    make_request,
)
from pccl._enums import Attribute, ReduceOp, SharedStateSyncStrategy, require
from pccl._member import GroupMember
from pccl._require import require_integer, require_seconds
from pccl._tensors import SharedState, SharedStateSyncInfo
from pccl._traffic import PeerTraffic, Traffic, TrafficReport
from ringfold import _native
from ringfold._error import PCCLError, Result
from ringfold._settings import SettingValue, setting_pairs


class Communicator:
    """A peer of a run: it joins, takes part in votes and collectives, and leaves.

    ``address`` is the address of the master, ``"host:port"`` or ``"[::1]:port"``; if there are several masters, all of them,
    separated by commas; by default those of ``RINGFOLD_MASTERS``. Collectives are among the peers of one
    ``peer_group``; topology updates concern the whole run. ``p2p_connection_pool_size`` is the number of TCP connections
    to each neighbour on another host (0: the default).

    ``name`` is the name of this peer in errors (default: host and process id). ``token`` is the join token of the master
    (default: ``RINGFOLD_JOIN_TOKEN``, or the file named by ``RINGFOLD_JOIN_TOKEN_FILE``). ``tls`` are the paths of the certificates of
    the run: CA, certificate, key and, if there is one, revocation list (default: ``RINGFOLD_TLS_CA``, ``RINGFOLD_TLS_CERT``,
    ``RINGFOLD_TLS_KEY`` and ``RINGFOLD_TLS_REVOKED``). ``listen_ports`` is the port, or the first
    and last of a range, to listen on (default: any free one); ``bind`` the local address to listen on; ``advertise`` the
    address or addresses that other peers dial, if not the one that the master sees; ``site`` a number that nearby peers
    share; ``connect_timeout`` the timeout of ``connect`` in seconds. ``max_upload`` and ``max_download`` cap the bandwidth to
    and from other hosts, such as ``"50mbit"`` or ``"10MiB/s"`` (default: ``RINGFOLD_MAX_UPLOAD`` and
    ``RINGFOLD_MAX_DOWNLOAD`` for the whole process, or no cap). With ``volunteer_relay`` the traffic of peers that cannot reach
    each other goes through this one (default: ``RINGFOLD_VOLUNTEER_RELAY``, or not). With ``reproducible`` all all-reduces are
    (default: ``RINGFOLD_REPRODUCIBLE``, or not). With ``resume`` all-reduces that are not quantised continue when a peer is lost
    (default: ``RINGFOLD_RESUME``, or not); the same on all peers. ``integrity`` is what all-reduces check: ``"payloads"``, ``"results"``, ``"all"``
    or ``"none"`` (default: ``RINGFOLD_INTEGRITY``, or ``"none"``); the same on all peers.

    ``replica`` are the id and the number of ranks of the replica that this peer is a rank of (default: none). The ranks of a
    replica are in different groups. They are admitted together, and if one is lost the others are removed, too. The id is a
    random number below 2**128 that all ranks share, and a new one whenever the replica starts.

    ``settings`` are settings by name, such as ``{"heartbeat": 0.25, "stall_after": "10s"}``; ``"config"`` is the path of a TOML
    file with settings. They have priority over variables of the environment; an argument for the same thing has priority over them.

    Calls may be made from any thread, and release the interpreter lock while they wait. Every waiting call ends: with its
    result, with a :class:`PCCLError` that names the missing peers, or with the exception of a signal handler (Ctrl-C); then
    this peer has left the run.

        >>> import threading, numpy, pccl
        >>> with pccl.MasterNode("127.0.0.1:0") as master:
        ...     def peer(values):
        ...         with pccl.Communicator(master.address) as comm:
        ...             comm.connect()
        ...             while comm.world_size < 2:
        ...                 comm.update_topology()
        ...             comm.all_reduce(values, values, op=pccl.ReduceOp.SUM)
        ...     mine, other = numpy.array([1.0, 2.0]), numpy.array([10.0, 20.0])
        ...     thread = threading.Thread(target=peer, args=[other])
        ...     thread.start()
        ...     peer(mine)
        ...     thread.join()
        >>> mine
        array([11., 22.])
    """

    def __init__(
        self,
        address: str | None = None,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        name: str | None = None,
        token: str | None = None,
        tls: Sequence[str] | None = None,
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
        replica: tuple[int, int] | None = None,
        settings: Mapping[str, SettingValue] | None = None,
    ) -> None:
        require_integer(peer_group, "peer_group", 0, 2**32 - 1)
        require_integer(p2p_connection_pool_size, "p2p_connection_pool_size", 0, 2**16 - 1)
        require_integer(site, "site", 0, 2**32 - 1)
        require_seconds(connect_timeout, "connect_timeout")
        ports = (listen_ports, listen_ports) if isinstance(listen_ports, int) else listen_ports
        for port in ports or ():
            require_integer(port, "listen_ports", 0, 2**16 - 1)
        advertised = [advertise] if isinstance(advertise, str) else list(advertise)
        pairs = setting_pairs(settings, reproducible=reproducible, resume=resume, integrity=integrity)
        self._address = address or _native.setting_masters(pairs) or ""
        self._connect_timeout = connect_timeout
        self._native = _native.Communicator(
            self._address,
            peer_group,
            p2p_connection_pool_size,
            name,
            token,
            ports,
            bind,
            advertised,
            site,
            connect_timeout,
            max_upload,
            max_download,
            volunteer_relay,
            None if tls is None else list(tls),
            replica,
            pairs,
        )
        _living.add(self)

    def connect(self, n_attempts: int = 5) -> None:
        """Connects to the master and waits until this peer is accepted.

        The first peer of a run is accepted at once, later ones when all accepted peers call ``update_topology``. An
        unreachable master is tried ``n_attempts`` times, one second apart; then the call fails with
        ``MASTER_CONNECTION_FAILED``, and may be retried. If there are several masters, and some can be reached but none is
        active, it fails after about 60 s.
        """
        require_integer(n_attempts, "n_attempts", 1)
        begun = time.monotonic()
        for left in reversed(range(n_attempts)):
            try:
                return self._native.connect()
            except PCCLError as error:
                timeout = self._connect_timeout
                is_late = timeout is not None and time.monotonic() - begun >= timeout
                if left == 0 or is_late or error.kind != "master-unreachable":
                    raise
            time.sleep(1)

    def update_topology(self) -> None:
        """Accepts waiting peers. All accepted peers of the run must call it.

        Fails with ``UPDATE_TOPOLOGY_FAILED`` if it may be retried, and with ``PENDING_ASYNC_OPS`` while an asynchronous
        all-reduce has not been awaited.
        """
        self._native.update_topology()

    def are_peers_pending(self) -> bool:
        """Whether peers wait to join. All accepted peers must call it, and get the same answer.

        It may be called during collectives, from another thread.
        """
        return self._native.are_peers_pending()

    def optimize_topology(self) -> None:
        """Measures the bandwidth between peers where it is unknown, and chooses the best ring.

        All accepted peers of the run must call it. With a single peer: ``INVALID_USAGE``.
        """
        self._native.optimize_topology()

    def get_attribute(self, attribute: Attribute) -> int:
        """A world size. It changes only by connect, update_topology, optimize_topology and collectives.

        After a successful ``all_reduce`` it is that of the operation, the same on all peers.
        """
        return self._native.attribute(require(attribute, Attribute, "attribute").value)

    @property
    def address(self) -> str:
        """The address of the master, or of several."""
        return self._address

    @property
    def world_size(self) -> int:
        """Accepted peers of this peer's group, this one included; 0 before ``connect``."""
        return self._native.attribute(Attribute.PEER_GROUP_WORLD_SIZE.value)

    @property
    def name(self) -> str:
        """The name of this peer in errors."""
        return self._native.name

    def members(self) -> tuple[GroupMember, ...]:
        """The members of this peer's group, oldest first; empty before ``connect``.

        They change by connect, update_topology, optimize_topology and successful collectives: so all peers see the same ones
        after the same operation.
        """
        own = self._native.id()
        return tuple(GroupMember(f"{peer:032x}", name, peer == own) for peer, name in self._native.members())

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
        *,
        beside_collectives: bool = False,
    ) -> SharedStateSyncInfo:
        """Makes the state equal on all peers of the group, which must all call it.

        Tensors that differ from the elected content are received and verified. ``shared_state.revision`` becomes the
        elected one. A peer whose state is rejected gets a ``PCCLError`` with the reason; the others continue.

        With ``beside_collectives`` (on all peers or none) other threads may reduce meanwhile, as long as they do not change
        the state.
        """
        require(shared_state, SharedState, "shared_state")
        number = require(strategy, SharedStateSyncStrategy, "strategy").value
        revision = require_integer(shared_state.revision, "revision", 0)
        entries = [(info.name, info._export(), info.allow_content_inequality) for info in shared_state.infos]
        shared_state.revision, tx, rx = self._native.sync_shared_state(
            revision, entries, number, beside_collectives
        )
        return SharedStateSyncInfo(tx, rx)

    def traffic(self) -> TrafficReport:
        """What this peer has sent and received in the run, in total and per peer. Also after ``leave()``."""
        total, peers = self._native.traffic()
        each = tuple(PeerTraffic(f"{peer:032x}", name, Traffic(*numbers)) for peer, name, numbers in peers)
        return TrafficReport(Traffic(*total), each)

    def clear_error_feedback(self, tag: int | None = None) -> None:
        """Forgets the errors of quantised all-reduces with ``error_feedback``: of a tag, or all. Frees their memory."""
        if tag is not None:
            require_integer(tag, "tag", 0)
        self._native.clear_error_feedback(tag)

    def all_reduce(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        weight: float | None = None,
        deadline: float | None = None,
        reproducible: bool = False,
        resume: bool = False,
    ) -> ReduceInfo:
        """Reduces ``send`` of all peers of the group into ``recv`` of each. All peers get the same bits.

        ``recv`` may be ``send``. Both are numpy arrays, torch tensors, or objects with the buffer protocol or DLPack,
        contiguous and of the same type and size. All peers must give the same operation, type, size and quantisation.

        ``weight`` is this peer's weight in an average of floats, such as its number of samples; then all peers must give
        one. ``deadline`` is the timeout of the operation for all peers, in seconds. With ``reproducible``, the result has the same bits
        whatever the plan, the transport and the number of peers per host; not with quantisation. With ``resume``, on all peers, the
        call continues when a peer is lost: the others send again only what is missing, and ``ReduceInfo.local_world_size`` is the
        number of peers in the result. It takes memory of about the size of the tensor, and pays for large tensors on slow
        links; not with quantisation, and without effect for CUDA tensors.

        Otherwise, if a peer is lost, the call fails on all peers with ``RANK_CONNECTION_LOST``. An in-place tensor is restored,
        so that the call can be retried; a separate ``recv`` is undefined. With a single peer: ``TOO_FEW_PEERS``.
        """
        request = make_request(
            send,
            recv,
            op,
            tag,
            operand_descriptor,
            quantization_options,
            weight,
            deadline,
            reproducible,
            resume,
        )
        return ReduceInfo(*self._native.all_reduce(request))

    def all_reduce_async(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        weight: float | None = None,
        deadline: float | None = None,
        reproducible: bool = False,
        resume: bool = False,
    ) -> AsyncReduceHandle:
        """As :meth:`all_reduce`, but returns at once.

        Several may be in flight with different tags; peers may start them in different orders. The tensors are kept alive;
        do not use them before ``wait()`` has returned.
        """
        request = make_request(
            send,
            recv,
            op,
            tag,
            operand_descriptor,
            quantization_options,
            weight,
            deadline,
            reproducible,
            resume,
        )
        return AsyncReduceHandle(self._native.all_reduce_async(request))

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """Runs several all-reduces, and retries those that failed because a peer was lost, until all have succeeded.

        At most ``max_in_flight`` run at a time, which may differ between peers. Tags must be unique. Returns the sum of the
        bytes, and the world of the last one. With a single peer: ``TOO_FEW_PEERS``.
        """
        if not descriptors:
            raise ValueError("invalid descriptors: empty")
        require_integer(max_in_flight, "max_in_flight", 1)
        requests = []
        for item in descriptors:
            require(item, ReduceOpDescriptor, "a descriptor")
            reduce = require(item.reduce_descriptor, ReduceDescriptor, "reduce_descriptor")
            operand, quantization = reduce.operand_descriptor, reduce.quantization_options
            send, recv = item._memory(item.send), item._memory(item.recv)
            request = make_request(send, recv, reduce.op, reduce.tag, operand, quantization)
            requests.append(request._replace(elements=reduce.count))
        return ReduceInfo(*self._native.all_reduce_many(requests, max_in_flight))

    def leave(self) -> None:
        """Leaves the run. Calls on other threads fail, and so do all later ones."""
        self._native.leave()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"Communicator({self._address!r}, name={self.name!r})"


class AsyncReduceHandle:
    """An all-reduce in flight. ``wait()`` or ``await handle`` returns its result."""

    def __init__(self, work: _native.Work) -> None:
        self._work = work
        self._error: PCCLError | None = None

    def wait(self, timeout: float | None = None) -> tuple[bool, int, ReduceInfo]:
        """Waits for the end: ``(is_success, status, info)``. May be repeated.

        ``status`` is a value of ``Result``. A failure raises nothing; :attr:`error` is the reason. After ``timeout`` seconds it
        raises ``TimeoutError``, and the operation continues.
        """
        end = self._work.wait(timeout)
        if end is None:
            raise TimeoutError(f"timed out after {timeout} s waiting for the all-reduce")
        status, text, is_retryable, kind, world, tx, rx = end
        if status != Result.SUCCESS:
            self._error = PCCLError(status, text, is_retryable, kind)
        return status == Result.SUCCESS, status, ReduceInfo(world, tx, rx)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._work.done()

    @property
    def error(self) -> PCCLError | None:
        """The error, after ``wait()`` has returned a failure."""
        return self._error

    def __await__(self) -> Generator[Any, None, tuple[bool, int, ReduceInfo]]:
        return self._ended().__await__()

    async def _ended(self) -> tuple[bool, int, ReduceInfo]:
        # Polls: a waiting thread could not be cancelled.
        pause = 0.0002
        while not self.done():
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.005)
        return self.wait()


# All communicators leave before the interpreter ends.
_living: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    _native.begin_interpreter_exit()
    for communicator in list(_living):
        communicator.leave()
