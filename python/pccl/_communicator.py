"""A peer's part in a run."""

from __future__ import annotations

import asyncio
import atexit
import time
import weakref
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any

from pccl._descriptors import (
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    order,
)
from pccl._enums import Attribute, ReduceOp, SharedStateSyncStrategy, require
from pccl._tensors import SharedState, SharedStateSyncInfo
from ringfold import _native
from ringfold._error import PCCLError, Result


class Communicator:
    """A peer's part in a run: it joins, takes part in votes and collectives, and leaves.

    ``address`` is the master's, ``"host:port"`` or ``"[::1]:port"``. Peers of one ``peer_group`` do collectives among
    themselves; votes on the topology are the whole run's. ``p2p_connection_pool_size`` is the number of TCP
    connections with each neighbour on another host (0: the default).

    ``name`` is what errors of others call this peer (default: host and process id). ``token`` is the secret that the
    master asks for (default: ``PCCL_JOIN_TOKEN``, or the file that ``PCCL_JOIN_TOKEN_FILE`` names). ``listen_ports`` is
    a port, or the first and last of a range, that other peers reach this one at (default: any free one); ``bind`` the
    local address to listen on; ``advertise`` the address, or addresses, that others shall dial, where that is not the
    one that the master sees; ``site`` a number that near peers share; ``connect_timeout`` for how many seconds
    ``connect`` waits to be let in.

    Calls may be made from any thread, and let other Python threads run while they wait. Every call that waits ends:
    with its answer, with a :class:`PCCLError` that names whom it waited for, or with the exception of a signal's
    handler (Ctrl-C), and then this peer has left the run.

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
        address: str,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        name: str | None = None,
        token: str | None = None,
        listen_ports: int | tuple[int, int] | None = None,
        bind: str | None = None,
        advertise: str | Sequence[str] = (),
        site: int = 0,
        connect_timeout: float | None = None,
    ) -> None:
        ports = (listen_ports, listen_ports) if isinstance(listen_ports, int) else listen_ports
        advertised = [advertise] if isinstance(advertise, str) else list(advertise)
        self._address = address
        self._connect_timeout = connect_timeout
        self._native = _native.Communicator(
            address,
            peer_group,
            p2p_connection_pool_size,
            name,
            token,
            ports,
            bind,
            advertised,
            site,
            connect_timeout,
        )
        _living.add(self)

    def connect(self, n_attempts: int = 5) -> None:
        """Registers with the master and waits until the peers of the run have let this one in.

        The first peer of a run is let in at once, later ones when all accepted peers call ``update_topology``. A master
        that can't be reached is tried ``n_attempts`` times, a second apart; then the call fails with
        ``MASTER_CONNECTION_FAILED``, and may be made again.
        """
        if n_attempts < 1:
            raise ValueError(f"n_attempts is at least 1, and not {n_attempts}")
        begun = time.monotonic()
        for left in reversed(range(n_attempts)):
            try:
                return self._native.connect()
            except PCCLError as error:
                patience = self._connect_timeout
                is_late = patience is not None and time.monotonic() - begun >= patience
                if left == 0 or is_late or not error.is_retryable:
                    raise
            time.sleep(1)

    def update_topology(self) -> None:
        """Lets in whoever waits to join. All accepted peers of the run call it together.

        Fails with ``UPDATE_TOPOLOGY_FAILED`` where a retry may help, with ``PENDING_ASYNC_OPS`` while an asynchronous
        all-reduce has not been awaited.
        """
        self._native.update_topology()

    def are_peers_pending(self) -> bool:
        """Whether anyone waits to join. All accepted peers call it together, and get the same answer.

        It is legal while collectives run, on another thread say.
        """
        return self._native.are_peers_pending()

    def optimize_topology(self) -> None:
        """Measures the ways between peers that were not measured yet, and takes the best ring.

        All accepted peers of the run call it together. Alone: ``INVALID_USAGE``.
        """
        self._native.optimize_topology()

    def get_attribute(self, attribute: Attribute) -> int:
        """A world size. It changes only by connect, update_topology, optimize_topology and collectives.

        After an ``all_reduce`` that succeeded it is the world of that operation, the same on all peers.
        """
        return self._native.attribute(require(attribute, Attribute, "attribute").value)

    @property
    def world_size(self) -> int:
        """Accepted peers of this peer's group, this one included; 0 before ``connect``."""
        return self._native.attribute(Attribute.PEER_GROUP_WORLD_SIZE.value)

    @property
    def name(self) -> str:
        """What others call this peer."""
        return self._native.name

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
    ) -> SharedStateSyncInfo:
        """Makes the state the same on all peers of the group, which call it together.

        Tensors that differ from what was elected are fetched, and checked. ``shared_state.revision`` becomes the elected
        one. A peer whose state does not fit gets a ``PCCLError`` that says why, and the others go on.
        """
        require(shared_state, SharedState, "shared_state")
        number = require(strategy, SharedStateSyncStrategy, "strategy").value
        revision = shared_state.revision
        if not isinstance(revision, int) or not 0 <= revision < 1 << 64:
            raise ValueError(f"a revision is a whole number from 0 to 2**64 - 1, and not {revision!r}")
        entries = [(info.name, info._export(), info.allow_content_inequality) for info in shared_state.infos]
        shared_state.revision, tx, rx = self._native.sync_shared_state(revision, entries, number)
        return SharedStateSyncInfo(tx, rx)

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
    ) -> ReduceInfo:
        """Reduces ``send`` of all peers of the group into ``recv`` of each, with the same bits everywhere.

        ``recv`` may be ``send``. Both are numpy arrays, torch tensors, or anything with the buffer protocol or DLPack,
        contiguous and of one type and size. All peers give the same operation, type, size and quantisation.

        ``weight`` is this peer's share in an average of floats (the number of samples, say); then every peer gives one.
        ``deadline`` ends the operation for all peers after so many seconds.

        If a peer is lost, the call fails on all peers with ``RANK_CONNECTION_LOST``. A tensor that was reduced in place
        then holds what it held before, so that the call can be made again; a separate ``recv`` is undefined. Alone:
        ``TOO_FEW_PEERS``.
        """
        wanted = order(
            send,
            recv,
            op,
            tag,
            operand_descriptor,
            quantization_options,
            weight=weight,
            deadline=deadline,
        )
        return ReduceInfo(*self._native.all_reduce(wanted))

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
    ) -> AsyncReduceHandle:
        """As :meth:`all_reduce`, and returns at once.

        Several may be in flight, under different tags, launched in any order on different peers. The tensors are kept
        alive; they must not be used before ``wait()`` has returned.
        """
        wanted = order(
            send,
            recv,
            op,
            tag,
            operand_descriptor,
            quantization_options,
            weight=weight,
            deadline=deadline,
        )
        return AsyncReduceHandle(self._native.all_reduce_async(wanted))

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """Reduces all of these, and again what failed because a peer was lost, until all have succeeded.

        At most ``max_in_flight`` run at a time, which need not be the same on all peers. Tags must differ. Reports the
        sum of the bytes, and the world of the last one. Alone: ``TOO_FEW_PEERS``.
        """
        if not descriptors:
            raise ValueError("there is nothing to reduce")
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight is at least 1, and not {max_in_flight}")
        wanted = []
        for item in descriptors:
            require(item, ReduceOpDescriptor, "a descriptor")
            what = require(item.reduce_descriptor, ReduceDescriptor, "reduce_descriptor")
            wanted.append(
                order(
                    item.send,
                    item.recv,
                    what.op,
                    what.tag,
                    what.operand_descriptor,
                    what.quantization_options,
                    count=what.count,
                )
            )
        return ReduceInfo(*self._native.all_reduce_many(wanted, max_in_flight))

    def leave(self) -> None:
        """Says goodbye. Calls that are under way on other threads fail, and so do all later ones."""
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
    """An all-reduce that was launched. ``wait()`` tells how it ended; so does ``await handle``."""

    def __init__(self, work: _native.Work) -> None:
        self._work = work
        self._error: PCCLError | None = None

    def wait(self, timeout: float | None = None) -> tuple[bool, int, ReduceInfo]:
        """Waits for the end: ``(is_success, status, info)``. May be called again.

        ``status`` is a value of ``Result``. A failed reduce raises nothing; :attr:`error` says why. After ``timeout``
        seconds a ``TimeoutError`` is raised, and the operation goes on.
        """
        end = self._work.wait(timeout)
        if end is None:
            raise TimeoutError(f"the all-reduce has not ended within {timeout} s")
        status, text, is_retryable, kind, world, tx, rx = end
        if status != Result.SUCCESS:
            self._error = PCCLError(status, text, is_retryable, kind)
        return status == Result.SUCCESS, status, ReduceInfo(world, tx, rx)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._work.done()

    @property
    def error(self) -> PCCLError | None:
        """Why it failed, once ``wait()`` has said that it did."""
        return self._error

    def __await__(self) -> Generator[Any, None, tuple[bool, int, ReduceInfo]]:
        return self._ended().__await__()

    async def _ended(self) -> tuple[bool, int, ReduceInfo]:
        # It goes on by itself, so looking now and then is enough; a thread that waits could not be cancelled.
        pause = 0.0002
        while not self.done():
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.005)
        return self.wait()


# Communicators say goodbye before the interpreter goes, whoever still holds them.
_living: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    _native.interpreter_ends()
    for communicator in list(_living):
        communicator.leave()
