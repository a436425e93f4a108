"""The engine as a backend. Needs torch and the native module, so it is imported with the first communicator."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from ringfold import _native
from ringfold._error import GroupError

from torchcomms import _environment
from torchcomms._address_exchange import open_exchange
from torchcomms._batch import P2POp, P2POpType
from torchcomms._call import Call
from torchcomms._device import Device, refuse_capture, synchronize_devices
from torchcomms._dtypes import SUM, U8
from torchcomms._hints import TAG, check_call_hints, media_of, setting_seconds, settings_of, tag_of, tls_of
from torchcomms._op_name import OpName
from torchcomms._options import BatchP2POptions, CommOptions, seconds
from torchcomms._sparse import is_sparse_sum, reduce_sparse
from torchcomms._staging import CallQueue, QueuedCall, staged
from torchcomms._task import Task
from torchcomms._work import Pending, TorchWork

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

    from torchcomms._reduce_op import ReduceOp
    from torchcomms._window import TorchCommWindow

_native.start_log()

# How long process exit waits for what finalized communicators still have to send.
EXIT_SECONDS = 10.0
# The part of that for kernels of communicators that were not finalized.
EXIT_KERNELS_SECONDS = 5.0
# The engine's limit for names of groups.
NAME_BYTES_MAX = 128
# The queue of all operations that are not transfers.
_COLLECTIVES = ("", -1)
# Groups that leave in the background.
_leaving: list[QueuedCall] = []
# The engines that are alive and not finalized.
_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """A rank of a group of the engine.

    With ``enable_reconfigure`` there is no group before the first reconfiguration, and a new one after each.
    """

    def __init__(
        self,
        backend: str,
        options: CommOptions,
        group: _native.Group | None,
        device: torch.device | None = None,
    ) -> None:
        _engines.add(self)
        self._backend = backend
        self._options = options
        # The device that runs collectives as kernels; gloo has none.
        self._wanted_device = None if backend == "gloo" else device
        self._device: Device | None = None
        self.all_reduce_now: Callable[[torch.Tensor, ReduceOp, bool], TorchWork | None] | None = None
        """An all-reduce without preparations, faster than :meth:`issue`; it returns None if it needs them."""
        # Whether the device is opened with the first collective on one.
        self._opens_late = False
        # The number of transfers of CUDA tensors that were staged, and of those that have to be before the device does them.
        self._staged_transfers: dict[tuple[str, int], int] = {}
        self._first_by_device: dict[tuple[str, int], int] = {}
        # The tag of transfers without one of their own.
        self._tag = tag_of(options.hints)
        self._timeout = seconds(options.timeout) or _environment.DEFAULT_TIMEOUT_SECONDS
        self._listener: _native.BootstrapListener | None = None
        self._handle: str | None = None
        self._why_no_group = "it was made with enable_reconfigure; call reconfigure() first"
        # After the first CUDA tensor all operations are staged, to keep their order: one queue for collectives, and one for
        # each direction to each rank.
        self._is_staging = False
        self._queues: dict[tuple[str, int], CallQueue] = {}
        self._is_initialized = group is not None
        self._set_group(group)

    def _set_group(self, group: _native.Group | None) -> None:
        self._group = group
        self.rank = -1 if group is None else group.rank
        self.size = 0 if group is None else group.world
        if self._device is not None:
            self._device.close()
        self._device = None
        self._staged_transfers, self._first_by_device = {}, {}
        # All ranks call this together. Groups that restore memory after a failure cannot do that on a device.
        has_devices = group is not None and self._backend != "gloo" and not self._options.enable_reconfigure
        wanted = self._wanted_device
        self._opens_late = has_devices and (wanted is None or wanted.type != "cuda")
        if group is not None and has_devices and not self._opens_late:
            self._device = Device.open(group, wanted, self._is_urgent)
        self._set_fast_path()

    def _set_fast_path(self) -> None:
        device = None if self._is_staging else self._device
        self.all_reduce_now = None if device is None else device.all_reduce_now

    @property
    def name(self) -> str:
        return self._backend

    @property
    def version(self) -> str:
        return _native.__version__

    @property
    def is_initialized(self) -> bool:
        return self._is_initialized

    @property
    def impl(self) -> Self:
        return self

    @property
    def _is_urgent(self) -> bool:
        return bool(self._options.is_high_priority_stream)

    # --- operations ------------------------------------------------------------------------------------------------

    def issue(self, call: Call) -> TorchWork:
        group = self._group or self._require_group()
        if is_sparse_sum(call):
            return self._reduce_sparse(call)
        task = Task(call, self.rank, self.size, self._tag)
        if call.hints:
            check_call_hints(call.hints, call.op.name, task.is_transfer)
        if self._opens_late and task.device is not None and not task.is_transfer:
            self._open_device(group, task.device)
        device = self._device
        if device is not None and (self._goes_by_device(task) if task.is_transfer else device.takes(task)):
            return self._queue(device, [task], call.async_op)
        refuse_capture(call.op.name)
        if self._is_staging or task.device is not None:
            return self._stage([task], call.async_op)
        arguments = task.native_arguments()
        try:
            if call.async_op:
                return TorchWork(group.submit(*arguments, (task.inputs, task.outputs)))
            group.run(*arguments)
        except GroupError as error:
            return _failed(error)
        return TorchWork()

    def issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork:
        group = self._require_group()
        # All are checked before any is started.
        if options.hints:
            check_call_hints(options.hints, OpName.batch_op_issue.name, True)
        own = _own_pairs(ops, self.rank)
        tasks = [
            Task(_transfer(op, options), self.rank, self.size, self._tag)
            for op in ops
            if op.peer != self.rank
        ]
        device, staged = self._device, dict(self._staged_transfers)
        queued = [task for task in tasks if self._goes_by_device(task, staged)]
        if len(queued) < len(tasks) or not all(receive.tensor.is_cuda for _, receive in own):
            refuse_capture("a batch of sends and receives")
        for send, receive in own:
            receive.tensor.data.copy_(send.tensor.data.reshape(receive.tensor.shape))
        if not tasks:
            return TorchWork()
        if device is not None and queued:
            others = [task for task in tasks if task not in queued]
            if not others:
                return self._queue(device, tasks, async_op)
            works = [self._queue(device, queued, True), self._stage(others, True)]
            return _joint_work([_PendingWork(work) for work in works], async_op)
        if self._is_staging or any(task.device is not None for task in tasks):
            return self._stage(tasks, async_op)
        calls = [(*task.native_arguments(), (task.inputs, task.outputs)) for task in tasks]
        try:
            pending = [group.submit(*call) for call in calls]
        except GroupError as error:
            return _failed(error)
        return _joint_work(pending, async_op)

    def _reduce_sparse(self, call: Call) -> TorchWork:
        """Sums a sparse tensor. An asynchronous call, too, runs to its end here."""
        refuse_capture(f"{call.op.name} of a sparse tensor")
        if call.hints:
            check_call_hints(call.hints, call.op.name)
        try:
            reduce_sparse(call, self.rank, self.size, self.issue)
        except GroupError as error:
            return _failed(error)
        return TorchWork()

    def _open_device(self, group: _native.Group, device: torch.device) -> None:
        """Connects the devices, with the first collective on CUDA tensors, which all ranks call together."""
        refuse_capture("the first collective of a group on CUDA tensors")
        # Not the transfers: the other rank may issue its part after this collective.
        self._join_collectives()
        self._opens_late = False
        self._device = Device.open(group, device, self._is_urgent)
        if self._device is not None:
            self._first_by_device = _agree_on_transfers(group, self._staged_transfers)
        self._set_fast_path()

    def _queue(self, device: Device, tasks: list[Task], async_op: bool) -> TorchWork:
        """Queues a collective or transfers on the device. A collective follows the staged ones that were issued before."""
        is_batch = tasks[0].is_transfer
        if not is_batch:
            self._join_collectives()
        try:
            return device.issue_batch(tasks, async_op) if is_batch else device.issue(tasks[0], async_op)
        except GroupError as error:
            return _failed(error)

    def _goes_by_device(self, task: Task, staged: dict[tuple[str, int], int] | None = None) -> bool:
        """Whether the device does a transfer. Both ranks answer alike for the same transfer.

        ``staged`` has the numbers of transfers that were staged before, and counts this one if it is.
        """
        device = self._device
        if device is None or not _counts(task) or not device.takes(task):
            return False
        staged = self._staged_transfers if staged is None else staged
        key = (task.native, task.peer)
        if staged.get(key, 0) >= self._first_by_device.get(key, 0):
            return True
        if staged is not self._staged_transfers:
            staged[key] = staged.get(key, 0) + 1
        return False

    def register_tensor(self, tensor: torch.Tensor) -> None:
        """Prepares the memory of a CUDA tensor: large operations on it are in place from the first one on."""
        if self._device is not None and tensor.is_cuda:
            self._device.register(tensor)

    def deregister_tensor(self, tensor: torch.Tensor) -> None:
        """Makes the other ranks close the memory of a CUDA tensor, unless a CUDA graph uses it."""
        if self._device is not None and tensor.is_cuda:
            self._device.deregister(tensor)

    def _stage(self, tasks: list[Task], async_op: bool) -> TorchWork:
        """Runs tasks in threads, with CUDA tensors staged through pinned host memory."""
        group, device = self._require_group(), self._device

        def run(task: Task) -> None:
            group.run(*task.native_arguments())

        def before(task: Task) -> Callable[[], None] | None:
            # Collectives are issued in the same order on all ranks, so earlier kernels end by themselves. Before a transfer
            # there is no such order: a kernel may wait for a rank that waits for this transfer.
            return None if device is None or task.is_transfer else device.synchronize

        # All are checked before any is started.
        # Kernels may wait for other hosts, whose next operation may be this transfer.
        pins = device is None or device.is_on_one_host
        calls = [
            staged(
                task,
                self._is_urgent if task.is_urgent is None else task.is_urgent,
                *(run, before(task), pins or not task.is_transfer),
            )
            for task in tasks
        ]
        self._is_staging, self.all_reduce_now = True, None
        for task in tasks:
            if _counts(task):
                key = (task.native, task.peer)
                self._staged_transfers[key] = self._staged_transfers.get(key, 0) + 1
        return _joint_work([self._queue_of(task).put(call) for task, call in zip(tasks, calls)], async_op)

    def _queue_of(self, task: Task) -> CallQueue:
        """The queue of a task: that of all collectives, or of its direction and rank."""
        key = (task.native, task.peer) if task.is_transfer else _COLLECTIVES
        if key not in self._queues:
            self._queues[key] = CallQueue()
        return self._queues[key]

    def _join_collectives(self) -> None:
        """Waits for all staged collectives."""
        if (queue := self._queues.get(_COLLECTIVES)) is not None:
            queue.join()

    def _join_queues(self) -> None:
        """Waits for all staged operations."""
        for queue in list(self._queues.values()):
            queue.join()

    def new_window(self) -> TorchCommWindow:
        from torchcomms._window import TorchCommWindow

        shares = media_of(self._options.hints) != "tcp" and _native.setting_is_on(
            "group", "shared_memory", settings_of(self._options.hints)
        )
        return TorchCommWindow(self._require_group(), shares, self._join_queues, lambda: self._device)

    # --- other groups ----------------------------------------------------------------------------------------------

    def split(self, ranks: list[int], name: str, timeout: float | None, options: CommOptions) -> Self:
        group = self._require_group()
        for rank in ranks:
            if not hasattr(rank, "__index__") or not 0 <= rank < self.size:
                raise RuntimeError(f"rank {rank} is out of range: ranks are 0 to {self.size - 1}")
        if len(set(ranks)) < len(ranks):
            raise RuntimeError(f"invalid ranks {ranks} in split: a rank is named twice")
        if self.rank not in ranks:
            raise RuntimeError(
                f"invalid ranks {ranks} in split: rank {self.rank} is not among them; pass an empty list instead"
            )
        limit = self._timeout if timeout is None else timeout
        child = group.split(ranks, _short(name), limit, media_of(options.hints), settings_of(options.hints))
        engine = type(self)(self._backend, options, child, self._wanted_device)
        engine._timeout = self._timeout
        return engine

    def init_handle(self) -> str:
        if self._handle is None:
            self._listener = _native.BootstrapListener()
            self._handle = self._listener.announcement
        return self._handle

    def reconfigure(self, uuid: int | str, handles: list[str] | set[str], timeout: float | None) -> TorchWork:
        members = sorted(handles) if isinstance(handles, (set, frozenset)) else list(handles)
        me = self.init_handle()
        if len(set(members)) < len(members):
            raise RuntimeError("invalid handles in reconfigure: a handle is given twice")
        if me not in members:
            raise RuntimeError(
                "invalid handles in reconfigure: this rank's get_init_handle() is not among them"
            )
        self._is_initialized = True
        self._leave_group()
        at: _native.BootstrapListener | str | None = self._listener if members[0] == me else members[0]
        try:
            group = _native.Group.connect(
                rank=members.index(me),
                world=len(members),
                name=_fingerprint(uuid, members),
                at=at if len(members) > 1 else None,
                timeout=self._timeout,
                connect_timeout=self._timeout if timeout is None else timeout,
                restores=self._options.enable_reconfigure,
                media=media_of(self._options.hints),
                tls=tls_of(self._options.hints),
                settings=settings_of(self._options.hints),
            )
        except GroupError as error:
            self._why_no_group = f"the last reconfigure() failed: {error}"
            return _failed(error)
        self._set_group(group)
        return TorchWork()

    def _leave_group(self) -> None:
        """Leaves the group, if there is one. Operations under way run to their end, if the group still works."""
        group = self._group
        self._set_group(None)
        self._why_no_group = "a reconfigure() is running"
        if group is not None:
            self._retire(group)

    def _retire(self, group: _native.Group) -> None:
        queues, self._queues = self._queues, {}
        device, self._device = self._device, None
        if not queues and device is None:
            group.retire()
            return

        def leave() -> None:
            for queue in queues.values():
                queue.join()
                queue.close()
            # Waits a moment for kernels. They end if a rank dies, as long as the group is there.
            try:
                if device is not None:
                    device.close()
            finally:
                group.retire()

        last = CallQueue()
        _leaving[:] = [call for call in _leaving if not call.done()]
        _leaving.append(last.put(leave))
        last.close()

    # --- settings, faults, end -------------------------------------------------------------------------------------

    def set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        if self._group is not None:
            self._group.set_timeout(seconds)
        if self._device is not None:
            self._device.set_timeout(seconds)

    def set_hints(self, hints: dict[str, str]) -> None:
        self._tag = tag_of(hints, self._tag)
        if self._device is not None:
            self._device.set_urgent(self._is_urgent)

    @property
    def works_end_unattended(self) -> bool:
        return True

    @property
    def has_windows(self) -> bool:
        return True

    @property
    def has_device(self) -> bool:
        return self._device is not None

    def device_state(self) -> tuple[BaseException | None, int | None]:
        device = self._device
        return (None, 0) if device is None else device.state()

    def can_abort(self) -> bool:
        return True

    def abort(self) -> None:
        if self._group is not None:
            self._group.abort()

    def failure(self) -> GroupError | None:
        """Why the group has failed; None if it works."""
        return None if self._group is None else self._group.failure()

    def is_aborted(self) -> bool:
        failure = self.failure()
        # A rank that has left was not aborted.
        return failure is not None and failure.kind != "left"

    def finalize(self) -> None:
        # Once: what waits in its queues is sent before the group leaves, also when the program ends.
        if self._group is not None and self in _engines:
            _engines.discard(self)
            self._retire(self._group)
        self._listener = None

    def _require_group(self) -> _native.Group:
        if self._group is None:
            raise RuntimeError(f"the communicator has no ranks: {self._why_no_group}")
        return self._group


def new_engine(backend: str, options: CommOptions, store: Store | None, device: torch.device) -> Engine:
    """Connects to the other ranks, unless ``enable_reconfigure`` is set."""
    from torchcomms._comms_gloo import TorchCommGloo

    kind = TorchCommGloo if backend == "gloo" else Engine
    if options.enable_reconfigure:
        return kind(backend, options, None, device)
    rank, size = _environment.rank_and_size()
    timeout = seconds(options.timeout) or _environment.DEFAULT_TIMEOUT_SECONDS
    limit = setting_seconds(options.hints, "bootstrap_timeout")
    # Generated names differ from rank to rank; unnamed communicators share one.
    name = options.name or "unnamed"
    exchange = open_exchange(name, store, timeout) if size > 1 else None
    try:
        group = _native.Group.connect(
            rank=rank,
            world=size,
            name=_short(name),
            at=exchange,
            timeout=timeout,
            connect_timeout=limit or timeout,
            restores=False,
            media=media_of(options.hints),
            tls=tls_of(options.hints),
            settings=settings_of(options.hints),
        )
    finally:
        if exchange is not None:
            exchange.close()
    return kind(backend, options, group, device)


def _counts(task: Task) -> bool:
    """Whether a task is a transfer that the device can do."""
    return (
        task.is_transfer
        and task.device is not None
        and not task.tag
        and bool((task.inputs or task.outputs)[0].nbytes)
    )


def _agree_on_transfers(
    group: _native.Group, staged: dict[tuple[str, int], int]
) -> dict[tuple[str, int], int]:
    """The number of transfers in each direction with each rank that are staged before the device does them.

    All ranks call this together. A rank may have issued transfers before that the other one issues later, or has issued
    before, so the larger number counts.
    """
    import torch

    rank, size = group.rank, group.world
    mine = torch.tensor([[staged.get((op, peer), 0) for peer in range(size)] for op in ("send", "recv")])
    all_ranks = torch.empty((size, 2, size), dtype=mine.dtype)
    spans = [(mine.data_ptr(), mine.nbytes)], [(all_ranks.data_ptr(), all_ranks.nbytes)]
    group.run("all_gather", U8, SUM, -1, None, None, *spans, None, 0)
    first = {}
    for peer in range(size):
        first["send", peer] = max(int(mine[0, peer]), int(all_ranks[peer, 1, rank]))
        first["recv", peer] = max(int(mine[1, peer]), int(all_ranks[peer, 0, rank]))
    return first


class _PendingWork:
    """A work as a part of another one."""

    __slots__ = ("_work",)

    def __init__(self, work: TorchWork) -> None:
        self._work = work

    def wait(self, timeout: float | None) -> bool:
        if not self._work._wait_for(timeout):
            return False
        self._work.wait()
        return True

    def done(self) -> bool:
        return self._work.is_completed()


class _JointPending:
    """Several operations that are waited for as one."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Pending]) -> None:
        self._parts = parts

    def wait(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        failure: GroupError | None = None
        for part in self._parts:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                if not part.wait(left):
                    return False
            except GroupError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return True

    def done(self) -> bool:
        return all(part.done() for part in self._parts)


def _joint_work(pending: Sequence[Pending], async_op: bool) -> TorchWork:
    work = TorchWork(pending[0] if len(pending) == 1 else _JointPending(pending))
    if not async_op:
        work._settle(None)
    return work


def _failed(error: GroupError) -> TorchWork:
    """A work that raises the error. Invalid arguments are raised at once: no other rank has seen the call."""
    if error.kind == "argument":
        raise error
    return TorchWork(None, error)


def _transfer(op: P2POp, options: BatchP2POptions) -> Call:
    is_send = op.type is P2POpType.SEND
    name = OpName.send if is_send else OpName.recv
    hints = options.hints if op.tag is None else {**options.hints, TAG: str(op.tag)}
    call = Call(name, True, hints, options.timeout, peer=op.peer)
    if is_send:
        call.input = op.tensor
    else:
        call.output = op.tensor
    return call


def _own_pairs(ops: list[P2POp], rank: int) -> list[tuple[P2POp, P2POp]]:
    """The sends of this rank to itself with their receives, in the order of each tag."""
    own = sorted((op for op in ops if op.peer == rank), key=lambda op: op.tag or 0)
    sends = [op for op in own if op.type is P2POpType.SEND]
    receives = [op for op in own if op.type is P2POpType.RECV]
    described = [[(op.tag, op.tensor.numel(), op.tensor.dtype) for op in side] for side in (sends, receives)]
    if described[0] != described[1]:
        raise RuntimeError(
            f"invalid batch: rank {rank} sends itself (tag, elements, type) {described[0]}, but receives {described[1]}: each "
            "send to the own rank needs a receive in the same batch"
        )
    return list(zip(sends, receives))


def _short(name: str) -> str:
    """The engine's name of a group: a digest if the name is too long."""
    encoded = name.encode(errors="surrogatepass")
    return name if len(encoded) <= NAME_BYTES_MAX else f"long-{hashlib.sha256(encoded).hexdigest()}"


def _fingerprint(uuid: int | str, members: list[str]) -> str:
    """The name of a reconfigured group: unique, because a handle belongs to one communicator of one process."""
    text = "\n".join([str(uuid), *members])
    return f"reconfigured-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


# Registered first, so it runs last: then calls of daemon threads no longer return to the interpreter.
atexit.register(_native.begin_interpreter_exit)


@atexit.register
def _finish() -> None:
    """Waits for what finalized communicators still send, and for this rank's kernels: other ranks may need both."""
    deadline = time.monotonic() + EXIT_SECONDS
    synchronize_devices(EXIT_KERNELS_SECONDS)
    if not hasattr(sys, "last_value"):
        # A program that ends without finalize() leaves. After an uncaught exception the other ranks see a lost one.
        for engine in list(_engines):
            # The others leave all the same.
            with contextlib.suppress(Exception):
                engine.finalize()
    for call in _leaving:
        if not call.join(max(deadline - time.monotonic(), 0.0)):
            break
    _native.finish_retired(max(deadline - time.monotonic(), 1.0))
