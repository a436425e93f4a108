"""A recorder of the last operations of a process's communicators."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

from torchcomms.hooks import _debug_server
from torchcomms.hooks._recorder import Recorder

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

_ENTRIES_SHARED = 2000

_shared: Recorder | None = None
_shared_lock = threading.Lock()


class FlightRecorderHook:
    """Records the last operations of communicators: call, sizes, times, thread, and state.

    It costs some microseconds per operation and keeps no tensors.

        recorder = FlightRecorderHook()
        recorder.register_with_comm(comm)
        ...
        print(recorder.dump_json())             # to read
        recorder.dump_file(comm.get_rank())     # for ``python -m torch.distributed.flight_recorder.fr_trace``

    All recorders of a process share a memory of ``TORCHCOMM_FR_BUFFER_SIZE`` operations (2000). With ``isolated=True`` a
    recorder has its own, of ``max_entries``. With ``max_entries=0`` it records nothing. Children of a communicator are
    recorded, too. When a communicator fails, the trace is written to a file before the error is raised.

    The file's name is ``TORCHCOMM_FR_DUMP_TEMP_FILE`` followed by the rank; by default ``comm_lib_trace_rank_0`` and so on, in the
    folder ``torch`` of ``$XDG_CACHE_HOME`` or ``~/.cache``. With ``TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME=1`` the variable is the
    whole name. Torch's debug server (``torch.distributed.debug``) shows the shared memory.
    """

    def __init__(self, max_entries: int = 2048, isolated: bool = False) -> None:
        self._records = max_entries > 0
        self._recorder = Recorder(max_entries) if isolated else _shared_recorder()
        self._comms: weakref.WeakSet[TorchComm] = weakref.WeakSet()

    def register_with_comm(self, comm: TorchComm) -> None:
        """Records later operations of this communicator. Calling it again does nothing."""
        _debug_server.add_handler(_shared_recorder)
        self._recorder.add_comm(comm, self._records)
        self._comms.add(comm)

    def dump_json(self, include_completed: bool = True) -> str:
        """The entries as JSON, oldest first; without ``include_completed`` only those that have not ended."""
        return self._recorder.json(include_completed)

    def dump_file(self, rank: int, include_completed: bool = True) -> str:
        """Writes the trace of this rank for torch's analyser; returns the path."""
        return self._recorder.write(rank, include_completed)

    def reset(self) -> None:
        """Removes all entries."""
        self._recorder.reset()

    def is_enabled(self) -> bool:
        """Whether it records: it is registered with a communicator that exists, and has room for entries."""
        return self._records and self._recorder.is_enabled and bool(self._comms)

    def size(self) -> int:
        """The number of entries."""
        return len(self._recorder)

    def __len__(self) -> int:
        return self.size()


def _shared_recorder() -> Recorder:
    global _shared  # noqa: PLW0603
    with _shared_lock:
        if _shared is None:
            _shared = Recorder(_entries_shared())
        return _shared


def _entries_shared() -> int:
    given = os.environ.get("TORCHCOMM_FR_BUFFER_SIZE", "")
    if not given:
        return _ENTRIES_SHARED
    try:
        return int(given)
    except ValueError:
        raise RuntimeError(f"invalid TORCHCOMM_FR_BUFFER_SIZE={given!r}: must be a number") from None
