"""The memory of a flight recorder."""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from torchcomms._hook_args import NewWindowPostHookArgs, SplitPostHookArgs
from torchcomms._op_name import OpName
from torchcomms.hooks import _trace_file
from torchcomms.hooks._entry import Entry
from torchcomms.hooks._recorded_comm import RecordedComm

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

VERSION = "2.10"
# The number of dropped communicators that are kept. Those with entries are always kept.
_DROPPED_MAX = 256
# Not recorded: these move no data and wait for no rank.
_LOCAL = frozenset({OpName.finalize, OpName.all_gather_p_init, OpName.all_gather_p_free})


class Recorder:
    """A ring buffer of entries."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = max(entries_max, 0)
        # Reentrant: a signal handler may dump while this thread records.
        self._lock = threading.RLock()
        self._ring: deque[Entry] = deque()
        # Operations between their two hooks.
        self._open: dict[int, Entry] = {}
        self._next_record = 0
        self._next_group = 0
        self._groups: list[RecordedComm] = []
        self._names: Counter[str] = Counter()
        self._hooked: weakref.WeakSet[TorchComm] = weakref.WeakSet()

    @property
    def is_enabled(self) -> bool:
        return self._entries_max > 0

    def add_comm(self, comm: TorchComm, records: bool = True, ranks: list[int] | None = None) -> None:
        """Adds a communicator, and records its operations if ``records`` is set. ``ranks`` are the global ones, if known.

        Adding it again does nothing.
        """
        with self._lock:
            group = next((group for group in self._groups if group.comm() is comm), None)
            if group is None:
                self._forget_dropped()
                name = comm.get_name()
                group = RecordedComm(comm, self._next_group, self._names[name], ranks)
                self._next_group += 1
                self._names[name] += 1
                self._groups.append(group)
            if not records or not self.is_enabled or comm in self._hooked:
                return
            self._hooked.add(comm)
        hooks = _CommHooks(self, group)
        comm.register_pre_hook(hooks.before)
        comm.register_post_hook(hooks.after)
        comm.register_abort_hook(hooks.on_abort)

    def begin(self, group: RecordedComm, op: OpName, op_id: int, args: Any) -> None:
        """Adds the entry of a new operation."""
        entry = Entry(group, op, op_id, args.async_op)
        entry.thread = _this_thread.id_and_name
        # Reading the tensors needs no lock.
        group.describe(entry, args)
        with self._lock:
            group.number(entry, args)
            entry.record_id = self._next_record
            self._next_record += 1
            if len(self._ring) >= self._entries_max:
                self._open.pop(self._ring.popleft().op_id, None)
            self._ring.append(entry)
            self._open[op_id] = entry
        if not entry.is_async:
            entry.start()

    def take_open(self, op_id: int) -> Entry | None:
        """Removes and returns the open entry of an operation."""
        return self._open.pop(op_id, None)

    def reject(self, entry: Entry, error: BaseException) -> None:
        """Marks an operation as rejected: it stays in dumps for people, but other ranks have never seen it."""
        with self._lock:
            entry.reject(error)
            entry.group.withdraw(entry)

    def reset(self) -> None:
        """Removes all entries. Sequence numbers go on."""
        with self._lock:
            self._ring.clear()
            self._open.clear()

    def __len__(self) -> int:
        return len(self._ring)

    def json(self, include_completed: bool) -> str:
        """The dump for people."""
        with self._lock:
            entries = self._updated(include_completed)
            return json.dumps({**self._heading(), "entries": [entry.to_dict() for entry in entries]})

    def trace_json(self, include_completed: bool) -> str:
        """The trace in the form of torch's analyser, as JSON."""
        with self._lock:
            entries = self._updated(include_completed)
            return json.dumps(_trace_file.converted(self._heading(), entries))

    def write(self, rank: int, include_completed: bool) -> str:
        """Writes the file for torch's analyser; returns its path."""
        with self._lock:
            entries = self._updated(include_completed)
            return _trace_file.write(rank, self._heading(), entries)

    def _heading(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "comm_lib_version": self._groups[-1].version if self._groups else "",
            "pg_config": {group.name: group.config() for group in self._groups},
            "pg_status": {str(group.pg_id): group.status() for group in self._groups},
        }

    def _updated(self, include_completed: bool) -> list[Entry]:
        for group in self._groups:
            group.update_ranks()
        entries = list(self._ring)
        for entry in entries:
            entry.update()
        _infer_ends(entries)
        return entries if include_completed else [entry for entry in entries if entry.completed_ns is None]

    def _forget_dropped(self) -> None:
        dropped = [group for group in self._groups if group.comm() is None]
        if len(dropped) > _DROPPED_MAX:
            referenced = {id(entry.group) for entry in self._ring}
            self._groups = [
                group for group in self._groups if group.comm() is not None or id(group) in referenced
            ]
            kept = {group.name for group in self._groups}
            self._names = Counter({name: count for name, count in self._names.items() if name in kept})


class _CommHooks:
    """The hooks of one communicator."""

    def __init__(self, recorder: Recorder, group: RecordedComm) -> None:
        self.recorder = recorder
        self.group = group

    def before(self, op: OpName, op_id: int, args: Any) -> None:
        if op not in _LOCAL:
            self.recorder.begin(self.group, op, op_id, args)

    def after(self, op_id: int, args: Any) -> None:
        entry = self.recorder.take_open(op_id)
        if entry is None:
            return
        if args.error is not None:
            self.recorder.reject(entry, args.error)
        elif isinstance(args, SplitPostHookArgs):
            entry.end(None)
            if args.new_comm is not None:
                ranks = [self.group.global_rank(rank) for rank in entry.ranks]
                self.recorder.add_comm(args.new_comm, ranks=ranks)
        elif isinstance(args, NewWindowPostHookArgs):
            entry.end(None)
        else:
            entry.follow(args.work)

    def on_abort(self) -> None:
        comm = self.group.comm()
        if comm is None:
            return
        log = logging.getLogger("torchcomms")
        try:
            path = self.recorder.write(self.group.global_rank(comm.get_rank()), True)
        except OSError as error:  # the caller gets the failure of the communicator
            log.warning("writing the trace of the flight recorder failed: %s", error)
        else:
            log.warning("communicator %r failed; the flight recorder wrote %s", self.group.name, path)


class _ThisThread(threading.local):
    """The number and name of the current thread."""

    def __init__(self) -> None:
        thread = threading.current_thread()
        self.id_and_name = (thread.native_id or 0, thread.name)


_this_thread = _ThisThread()


def _infer_ends(entries: list[Entry]) -> None:
    """Marks collectives whose work was dropped as ended if a later one has ended: they end in order."""
    ended: dict[int, int] = {}
    for entry in reversed(entries):
        if not entry.is_collective:
            continue
        if entry.completed_ns is not None:
            ended[entry.group.pg_id] = entry.completed_ns
        elif entry.work is not None and entry.work() is None and entry.group.pg_id in ended:
            entry.end(None, ended[entry.group.pg_id])
