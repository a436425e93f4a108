"""The last operations of the communicators of a process."""

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
from torchcomms.hooks._watched import Watched

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

VERSION = "2.10"
# Communicators that are remembered though they are gone; entries that speak of them keep them in any case.
_GONE_MAX = 256
# What is not recorded: it neither moves data nor waits for others.
_LOCAL = frozenset({OpName.finalize, OpName.all_gather_p_init, OpName.all_gather_p_free})


class Recorder:
    """A ring of entries, the newest in place of the oldest."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = max(entries_max, 0)
        # Reentrant: a signal's handler may dump while this thread records.
        self._lock = threading.RLock()
        self._ring: deque[Entry] = deque()
        # Those between their two hooks.
        self._begun: dict[int, Entry] = {}
        self._next_record = 0
        self._next_group = 0
        self._groups: list[Watched] = []
        self._names: Counter[str] = Counter()
        self._listening: weakref.WeakSet[TorchComm] = weakref.WeakSet()

    @property
    def is_enabled(self) -> bool:
        return self._entries_max > 0

    def watch(self, comm: TorchComm, records: bool = True, ranks: list[int] | None = None) -> None:
        """Lists a communicator, and records its operations if asked to; doing so again changes nothing. ``ranks`` are the
        global ones, if they are known."""
        with self._lock:
            group = next((group for group in self._groups if group.comm() is comm), None)
            if group is None:
                self._forget_gone()
                name = comm.get_name()
                group = Watched(comm, self._next_group, self._names[name], ranks)
                self._next_group += 1
                self._names[name] += 1
                self._groups.append(group)
            if not records or not self.is_enabled or comm in self._listening:
                return
            self._listening.add(comm)
        watch = _Watch(self, group)
        comm.register_pre_hook(watch.before)
        comm.register_post_hook(watch.after)
        comm.register_abort_hook(watch.on_abort)

    def begin(self, group: Watched, op: OpName, op_id: int, args: Any) -> None:
        """An operation was called."""
        entry = Entry(group, op, op_id, args.async_op)
        entry.thread = _this_thread.told
        # What reads the tensors needs no lock.
        group.describe(entry, args)
        with self._lock:
            group.number(entry, args)
            entry.record_id = self._next_record
            self._next_record += 1
            if len(self._ring) >= self._entries_max:
                self._begun.pop(self._ring.popleft().op_id, None)
            self._ring.append(entry)
            self._begun[op_id] = entry
        if not entry.is_async:
            entry.start()

    def take_begun(self, op_id: int) -> Entry | None:
        """The entry of an operation that comes to its second hook."""
        return self._begun.pop(op_id, None)

    def take_back(self, entry: Entry, error: BaseException) -> None:
        """The operation was refused: it stays here for its user to see, but others will never have seen it."""
        with self._lock:
            entry.refuse(error)
            entry.group.take_back(entry)

    def reset(self) -> None:
        """Forgets all operations. Numbers go on."""
        with self._lock:
            self._ring.clear()
            self._begun.clear()

    def __len__(self) -> int:
        return len(self._ring)

    def json(self, include_completed: bool) -> str:
        """What a person reads."""
        with self._lock:
            entries = self._looked_at(include_completed)
            return json.dumps({**self._heading(), "entries": [entry.told() for entry in entries]})

    def write(self, rank: int, include_completed: bool) -> str:
        """Writes the file that torch's analyser reads; its path."""
        with self._lock:
            entries = self._looked_at(include_completed)
            return _trace_file.write(rank, self._heading(), entries)

    def _heading(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "comm_lib_version": self._groups[-1].version if self._groups else "",
            "pg_config": {group.name: group.config() for group in self._groups},
            "pg_status": {str(group.pg_id): group.status() for group in self._groups},
        }

    def _looked_at(self, include_completed: bool) -> list[Entry]:
        for group in self._groups:
            group.learn()
        entries = list(self._ring)
        for entry in entries:
            entry.look()
        _infer_ends(entries)
        return entries if include_completed else [entry for entry in entries if entry.completed_ns is None]

    def _forget_gone(self) -> None:
        gone = [group for group in self._groups if group.comm() is None]
        if len(gone) > _GONE_MAX:
            spoken_of = {id(entry.group) for entry in self._ring}
            self._groups = [
                group for group in self._groups if group.comm() is not None or id(group) in spoken_of
            ]
            kept = {group.name for group in self._groups}
            self._names = Counter({name: count for name, count in self._names.items() if name in kept})


class _Watch:
    """The hooks of one communicator."""

    def __init__(self, recorder: Recorder, group: Watched) -> None:
        self.recorder = recorder
        self.group = group

    def before(self, op: OpName, op_id: int, args: Any) -> None:
        if op not in _LOCAL:
            self.recorder.begin(self.group, op, op_id, args)

    def after(self, op_id: int, args: Any) -> None:
        entry = self.recorder.take_begun(op_id)
        if entry is None:
            return
        if args.error is not None:
            self.recorder.take_back(entry, args.error)
        elif isinstance(args, SplitPostHookArgs):
            entry.end(None)
            if args.new_comm is not None:
                ranks = [self.group.global_rank(rank) for rank in entry.ranks]
                self.recorder.watch(args.new_comm, ranks=ranks)
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
        except OSError as error:  # the failure that brought us here is what the user has to hear of
            log.warning("the flight recorder can't write its trace: %s", error)
        else:
            log.warning("communicator %r failed; the flight recorder wrote %s", self.group.name, path)


class _ThisThread(threading.local):
    """The number and the name of the thread that asks."""

    def __init__(self) -> None:
        thread = threading.current_thread()
        self.told = (thread.native_id or 0, thread.name)


_this_thread = _ThisThread()


def _infer_ends(entries: list[Entry]) -> None:
    """Collectives end in order. So one whose work was dropped before anyone looked has ended if a later one has."""
    ended: dict[int, int] = {}
    for entry in reversed(entries):
        if not entry.is_collective:
            continue
        if entry.completed_ns is not None:
            ended[entry.group.pg_id] = entry.completed_ns
        elif entry.work is not None and entry.work() is None and entry.group.pg_id in ended:
            entry.end(None, ended[entry.group.pg_id])
