"""Our engine as a backend. Needs torch and the native module, so it is imported with the first communicator."""

from __future__ import annotations

import atexit
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from ringfold import _native
from ringfold._error import GroupError

from torchcomms import _environment
from torchcomms._batch import P2POp, P2POpType
from torchcomms._call import Call
from torchcomms._device import Device, settle_devices
from torchcomms._hints import MEDIA
from torchcomms._op_name import OpName
from torchcomms._options import BatchP2POptions, CommOptions, seconds
from torchcomms._staging import Staged, Staging, staged
from torchcomms._store import notice
from torchcomms._task import Task
from torchcomms._work import Pending, TorchWork

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

    from torchcomms._window import TorchCommWindow

# How long the end of the process waits for what finalized communicators still have to send.
EXIT_SECONDS = 10.0
# How long of that for kernels of communicators that are not finalized.
EXIT_KERNELS_SECONDS = 5.0
# The longest name that the engine takes for a group.
NAME_BYTES_MAX = 128
# The line of all that is not a transfer.
_COLLECTIVES = ("", -1)
# Those who leave their groups in the background.
_leaving: list[Staged] = []


class Engine:
    """A rank of a group of the engine, and the group it is a rank of: there is none before the first reconfiguration of a
    communicator that waits for one, and another one after each.
    """

    def __init__(
        self,
        backend: str,
        options: CommOptions,
        group: _native.Group | None,
        device: torch.device | None = None,
    ) -> None:
        self._backend = backend
        self._options = options
        # Where tensors are combined without the host's help; gloo has never been asked for that.
        self._wanted = None if backend == "gloo" else device
        self._device: Device | None = None
        self._timeout = seconds(options.timeout) or _environment.DEFAULT_TIMEOUT_SECONDS
        self._place: _native.MeetingPlace | None = None
        self._handle: str | None = None
        self._why_none = "it was made with enable_reconfigure, and nobody is in it before reconfigure()"
        # Once tensors of a device were seen, everything takes the road through the host's memory, so that nothing overtakes
        # anything: one line for collectives, one for each direction to each rank.
        self._is_staging = False
        self._lines: dict[tuple[str, int], Staging] = {}
        self._is_initialized = group is not None
        self._take(group)

    def _take(self, group: _native.Group | None) -> None:
        self._group = group
        self.rank = -1 if group is None else group.rank
        self.size = 0 if group is None else group.world
        if self._device is not None:
            self._device.close()
        # All ranks come here together. Groups that restore what was in memory can't do that on a device.
        is_sought = group is not None and self._backend != "gloo" and not self._options.enable_reconfigure
        is_urgent = bool(self._options.is_high_priority_stream)
        self._device = (
            Device.open(group, self._wanted, is_urgent) if group is not None and is_sought else None
        )

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

    # --- operations ------------------------------------------------------------------------------------------------

    def issue(self, call: Call) -> TorchWork:
        group = self._group
        if group is None:
            raise self._no_group()
        task = Task(call, self.rank, self.size)
        if self._device is not None and self._device.takes(task):
            return self._queue(self._device, task, call.async_op)
        if self._is_staging or task.device is not None:
            return self._stage([task], call.async_op)
        order = task.order()
        try:
            if call.async_op:
                return TorchWork(group.submit(*order, (task.inputs, task.outputs)))
            group.run(*order)
        except GroupError as error:
            return _failed(error)
        return TorchWork()

    def issue_batch(self, ops: list[P2POp], async_op: bool, options: BatchP2POptions) -> TorchWork:
        group = self._group
        if group is None:
            raise self._no_group()
        # All are looked at before any is begun.
        tasks = [Task(_transfer(op, options), self.rank, self.size) for op in ops]
        if self._is_staging or any(task.device is not None for task in tasks):
            return self._stage(tasks, async_op)
        orders = [task.order() for task in tasks]
        try:
            begun = [group.submit(*order, (task.inputs, task.outputs)) for order, task in zip(orders, tasks)]
        except GroupError as error:
            return _failed(error)
        work = TorchWork(_All(begun))
        if not async_op:
            work._settle(None)
        return work

    def _queue(self, device: Device, task: Task, async_op: bool) -> TorchWork:
        """Has the device do it. Collectives on the road through the host's memory come first, as all ranks issued them."""
        if (line := self._lines.get(_COLLECTIVES)) is not None:
            line.settle()
        try:
            return device.issue(task, async_op)
        except GroupError as error:
            return _failed(error)

    def register_tensor(self, tensor: torch.Tensor) -> None:
        """Has large all-reduces and all-gathers of this CUDA tensor, or of parts of it, read and write it in place. All ranks call
        this together, each with a tensor of its own, which is kept until the communicator is finalized.
        """
        if self._device is None:
            raise RuntimeError("the communicator's collectives do not run on a CUDA device")
        self._settle_lines()
        self._device.register(tensor)

    def _stage(self, tasks: list[Task], async_op: bool) -> TorchWork:
        """Takes the road through the host's memory."""
        group, device = self._require_group(), self._device
        is_urgent = bool(self._options.is_high_priority_stream)

        def run(task: Task) -> None:
            group.run(*task.order())

        def settled(task: Task) -> Callable[[], None] | None:
            # All ranks issue collectives in one order, so kernels that were issued before end by themselves. A kernel may wait
            # for a rank that waits for a transfer of ours first.
            return None if device is None or task.is_transfer else device.settle

        # All are looked at before any is begun.
        jobs = [staged(task, is_urgent, run, settled(task)) for task in tasks]
        self._is_staging = True
        begun = [self._line(task).begin(job) for task, job in zip(tasks, jobs)]
        work = TorchWork(begun[0] if len(begun) == 1 else _All(begun))
        if not async_op:
            work._settle(None)
        return work

    def _line(self, task: Task) -> Staging:
        """Where a task is done after those before it. Transfers wait for nothing but others the same way."""
        way = (task.native, task.peer) if task.is_transfer else _COLLECTIVES
        if way not in self._lines:
            self._lines[way] = Staging()
        return self._lines[way]

    def _settle_lines(self) -> None:
        """Waits until nothing is on the road through the host's memory."""
        for line in list(self._lines.values()):
            line.settle()

    def new_window(self) -> TorchCommWindow:
        from torchcomms._window import TorchCommWindow

        shares = _media(self._options) != "tcp"
        return TorchCommWindow(self._require_group(), shares, self._settle_lines)

    # --- other groups ----------------------------------------------------------------------------------------------

    def split(self, ranks: list[int], name: str, timeout: float | None) -> Self:
        group = self._require_group()
        for rank in ranks:
            if not hasattr(rank, "__index__") or not 0 <= rank < self.size:
                raise RuntimeError(f"rank {rank} is out of range: ranks are 0 to {self.size - 1}")
        if len(set(ranks)) < len(ranks):
            raise RuntimeError(f"a rank is named twice in {ranks}")
        if self.rank not in ranks:
            raise RuntimeError(
                f"this rank, {self.rank}, is not in {ranks}; who is not calls with an empty list"
            )
        child = group.split(ranks, _short(name), self._timeout if timeout is None else timeout)
        engine = type(self)(self._backend, self._options, child, self._wanted)
        engine._timeout = self._timeout
        return engine

    def init_handle(self) -> str:
        if self._handle is None:
            self._place = _native.MeetingPlace()
            self._handle = self._place.announcement
        return self._handle

    def reconfigure(self, uuid: int | str, handles: list[str] | set[str], timeout: float | None) -> TorchWork:
        members = sorted(handles) if isinstance(handles, (set, frozenset)) else list(handles)
        me = self.init_handle()
        if len(set(members)) < len(members):
            raise RuntimeError("a handle is given twice")
        if me not in members:
            raise RuntimeError("the handle of this rank (get_init_handle()) is not among those given")
        self._is_initialized = True
        self._part()
        patience = self._timeout if timeout is None else timeout
        at: _native.MeetingPlace | str | None = self._place if members[0] == me else members[0]
        try:
            group = _native.Group.connect(
                rank=members.index(me),
                world=len(members),
                name=_fingerprint(uuid, members),
                at=at if len(members) > 1 else None,
                timeout=self._timeout,
                patience=patience,
                restores=self._options.enable_reconfigure,
                media=_media(self._options),
            )
        except GroupError as error:
            self._why_none = f"the last reconfigure() failed: {error}"
            return _failed(error)
        self._take(group)
        return TorchWork()

    def _part(self) -> None:
        """Leaves the group, if there is one. If it still works, what was begun runs to its end."""
        group = self._group
        self._take(None)
        self._why_none = "a reconfigure() is under way"
        if group is not None:
            self._retire(group)

    def _retire(self, group: _native.Group) -> None:
        lines, self._lines = self._lines, {}
        device, self._device = self._device, None
        if not lines and device is None:
            group.retire()
            return

        def leave() -> None:
            for line in lines.values():
                line.settle()
                line.end()
            # Waits a moment for kernels, which whoever leaves does not. While the group is there, they end if a rank dies.
            try:
                if device is not None:
                    device.close()
            finally:
                group.retire()

        last = Staging()
        _leaving[:] = [one for one in _leaving if not one.done()]
        _leaving.append(last.begin(leave))
        last.end()

    # --- settings, faults, end -------------------------------------------------------------------------------------

    def set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        if self._group is not None:
            self._group.set_timeout(seconds)
        if self._device is not None:
            self._device.set_timeout(seconds)

    def can_abort(self) -> bool:
        return True

    def abort(self) -> None:
        if self._group is not None:
            self._group.abort()

    def is_aborted(self) -> bool:
        failure = None if self._group is None else self._group.failure()
        # Whoever has left in good order was not given up.
        return failure is not None and failure.kind != "left"

    def finalize(self) -> None:
        if self._group is not None:
            self._retire(self._group)
        self._place = None

    def _require_group(self) -> _native.Group:
        if self._group is None:
            raise self._no_group()
        return self._group

    def _no_group(self) -> RuntimeError:
        return RuntimeError(f"the communicator has no ranks: {self._why_none}")


def new_engine(backend: str, options: CommOptions, store: Store | None, device: torch.device) -> Engine:
    """Meets the other ranks, unless the options say that it is reconfigured later."""
    kind = _kind(backend)
    if options.enable_reconfigure:
        return kind(backend, options, None, device)
    rank, size = _environment.rank_and_size()
    timeout = seconds(options.timeout) or _environment.DEFAULT_TIMEOUT_SECONDS
    # Generated names differ from rank to rank, so a communicator without a name has the same for all.
    name = options.name or "unnamed"
    at = notice(name, store, timeout) if size > 1 else None
    try:
        group = _native.Group.connect(
            rank=rank,
            world=size,
            name=_short(name),
            at=at,
            timeout=timeout,
            patience=timeout,
            restores=False,
            media=_media(options),
        )
    finally:
        if at is not None:
            at.close()
    return kind(backend, options, group, device)


def _kind(backend: str) -> type[Engine]:
    from torchcomms._comms_gloo import TorchCommGloo

    return TorchCommGloo if backend == "gloo" else Engine


class _All:
    """Several operations that are waited for as one."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Pending]) -> None:
        self._parts = parts

    def wait(self, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        failure: GroupError | None = None
        for part in self._parts:
            left = None if until is None else max(until - time.monotonic(), 0.0)
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


def _failed(error: GroupError) -> TorchWork:
    """What went wrong is the work's to raise, unless nobody else has been asked for anything."""
    if error.kind == "argument":
        raise error
    return TorchWork(None, error)


def _transfer(op: P2POp, options: BatchP2POptions) -> Call:
    is_send = op.type is P2POpType.SEND
    return Call(
        OpName.send if is_send else OpName.recv,
        True,
        op.tensor if is_send else None,
        None if is_send else op.tensor,
        op.peer,
        timeout=options.timeout,
    )


def _media(options: CommOptions) -> str:
    return (options.hints or {}).get(MEDIA, "auto")


def _short(name: str) -> str:
    """What the engine calls a group of this name: it takes no long ones."""
    whole = name.encode(errors="surrogatepass")
    return name if len(whole) <= NAME_BYTES_MAX else f"long-{hashlib.sha256(whole).hexdigest()}"


def _fingerprint(uuid: int | str, members: list[str]) -> str:
    """What those who reconfigure together call their group, and nobody else: the name would add nothing, because a handle is
    that of one communicator of one process."""
    text = "\n".join([str(uuid), *members])
    return f"reconfigured-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


# The last to run: whatever a daemon thread's call ends with from then on, there is no interpreter to come back to.
atexit.register(_native.interpreter_ends)


@atexit.register
def _finish() -> None:
    """Others may still wait for what finalized communicators have to send, and for kernels of this rank."""
    until = time.monotonic() + EXIT_SECONDS
    settle_devices(EXIT_KERNELS_SECONDS)
    for one in _leaving:
        if not one.ends_within(max(until - time.monotonic(), 0.0)):
            break
    _native.finish_retired(max(until - time.monotonic(), 1.0))
