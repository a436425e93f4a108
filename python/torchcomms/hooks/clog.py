"""A machine-readable log of a communicator's operations."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, TextIO

from torchcomms._hook_args import NewWindowPostHookArgs, SplitPostHookArgs
from torchcomms._op_name import OpName
from torchcomms._work import TorchWork, WorkEvent
from torchcomms.hooks._signature import addresses, signature

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

EVENTS = frozenset({"ALL", "LIFECYCLE"})
DETAILS = frozenset({"buffers"})
_STREAMS = ("stdout", "stderr")
# The most calls between their two hooks. A call that another hook rejects never reaches its second.
_OPEN_MAX = 1024
_LETTERS: dict[WorkEvent, str] = {"start": "S", "end": "E", "wait": "W"}


class clog:
    """Writes a line when an operation is called (Q), and, with the events ``LIFECYCLE`` or ``ALL``, when it starts (S),
    ends (E), and is waited for (W)::

        V|1|base_timestamp=1730000000.000
        new_comm|comm=main|rank=0|world_size=2
        C0|sig|all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f|comm=main
        C0|Q|work_id=0|+0.001
        C0|S|work_id=0|+0.001
        C0|E|work_id=0|+0.002

    The signature of an operation is written once, with a number; later lines have only the number. Times are seconds since
    the base.

    ``output`` is a path (the file is overwritten), ``"stdout"``, ``"stderr"``, or an object with ``write`` and ``flush``.
    ``verbose=["buffers"]`` adds the addresses of tensors to the Q lines. Children of a communicator are logged, too. The end
    of an asynchronous operation is written when the program checks or waits for it.
    """

    def __init__(
        self,
        output: str | PathLike[str] | TextIO,
        events: Iterable[str] | str,
        verbose: Iterable[str] | str = (),
    ) -> None:
        chosen = _chosen(events, EVENTS, "event")
        self._has_lifecycle = bool(chosen)
        self._has_buffers = "buffers" in _chosen(verbose, DETAILS, "detail")
        self._out: TextIO
        if isinstance(output, (str, PathLike)) and output not in _STREAMS:
            self._out = open(output, "w", encoding="utf-8")
            weakref.finalize(self, self._out.close)
        else:
            self._out = getattr(sys, output) if isinstance(output, str) else output
        self._lock = threading.RLock()
        self._signatures: dict[str, int] = {}
        # True if the user registered it, False if it is a child.
        self._comms: weakref.WeakKeyDictionary[TorchComm, bool] = weakref.WeakKeyDictionary()
        self._base_ns = time.monotonic_ns()
        self._write(f"V|1|base_timestamp={time.time():.3f}")

    def register_with_comm(self, comm: TorchComm) -> None:
        """Logs later operations of this communicator."""
        with self._lock:
            is_users = self._comms.get(comm)
            if is_users:
                raise RuntimeError(
                    f"communicator {comm.get_name()!r} is already logged: it was registered before"
                )
            self._comms[comm] = True
        if is_users is None:
            self._add_hooks(comm)

    def _add_hooks(self, comm: TorchComm) -> None:
        hooks = _CommHooks(self, comm)
        self._write(f"new_comm|comm={hooks.name}|rank={comm.get_rank()}|world_size={comm.get_size()}")
        comm.register_pre_hook(hooks.before)
        comm.register_post_hook(hooks.after)

    def _add_child(self, comm: TorchComm) -> None:
        with self._lock:
            if comm in self._comms:
                return
            self._comms[comm] = False
        self._add_hooks(comm)

    def _number(self, text: str) -> int:
        with self._lock:
            number = self._signatures.get(text)
            if number is None:
                number = self._signatures[text] = len(self._signatures)
                self._write(f"C{number}|sig|{text}")
            return number

    def _event(self, number: int, letter: str, work_id: int, more: str = "") -> None:
        # The lock keeps times and lines in the same order.
        with self._lock:
            since = (time.monotonic_ns() - self._base_ns) / 1e9
            self._write(f"C{number}|{letter}|work_id={work_id}|+{since:.3f}{more}")

    def _write(self, line: str) -> None:
        with self._lock:
            self._out.write(f"{line}\n")
            self._out.flush()


class _CommHooks:
    """The hooks of one communicator."""

    def __init__(self, log: clog, comm: TorchComm) -> None:
        self.log = log
        self.name = comm.get_name()
        # Weak: the communicator refers to the hooks, and a cycle would delay its end.
        self.comm = weakref.ref(comm)
        # Calls between their two hooks: (signature number, is_async), or the ranks of a split.
        self.open_calls: dict[int, tuple[int, bool]] = {}
        self.splits: dict[int, list[int]] = {}

    def before(self, op: OpName, op_id: int, args: Any) -> None:
        comm = self.comm()
        if op is OpName.finalize or comm is None:
            return
        if op is OpName.split:
            self.splits[op_id] = args.ranks
            return
        rank = comm.get_rank()
        mode = "t" if args.async_op else "f"
        number = self.log._number(f"{signature(op, args, rank)}|async_op={mode}|comm={self.name}")
        where = addresses(op, args, rank) if self.log._has_buffers else ""
        self.log._event(number, "Q", op_id, f"|{where}" if where else "")
        if not self.log._has_lifecycle:
            return
        if len(self.open_calls) >= _OPEN_MAX:
            self.open_calls.clear()
        self.open_calls[op_id] = (number, args.async_op)
        if not args.async_op:
            # A synchronous call starts at once; if it hangs, the log shows the start.
            self.log._event(number, "S", op_id)

    def after(self, op_id: int, args: Any) -> None:
        if isinstance(args, SplitPostHookArgs):
            ranks = self.splits.pop(op_id, [])
            if args.new_comm is not None:
                child = args.new_comm.get_name()
                listed = ",".join(map(str, ranks))
                self.log._write(f"split|parent={self.name}|child={child}|ranks={listed}")
                self.log._add_child(args.new_comm)
            return
        call = self.open_calls.pop(op_id, None)
        if call is None:
            return
        number, is_async = call
        if isinstance(args, NewWindowPostHookArgs):
            self.log._event(number, "E", op_id)
        else:
            _follow(self.log, number, op_id, args.work, has_started=not is_async)


def _follow(log: clog, number: int, op_id: int, work: TorchWork, has_started: bool) -> None:
    written: set[WorkEvent] = {"start"} if has_started else set()

    def on_event(event: WorkEvent) -> None:
        # Each event once: waiting again is legal, and two threads may see the end at once.
        with log._lock:
            if event not in written:
                written.add(event)
                log._event(number, _LETTERS[event], op_id)

    work._listen(on_event)


def _chosen(given: Iterable[str] | str, valid: frozenset[str], noun: str) -> set[str]:
    names = {name.lower(): name for name in valid}
    chosen = set()
    for one in [given] if isinstance(given, str) else given:
        if one.lower() not in names:
            raise ValueError(f"unknown {noun} {one!r} of the log: must be {' or '.join(sorted(valid))}")
        chosen.add(names[one.lower()])
    return chosen
