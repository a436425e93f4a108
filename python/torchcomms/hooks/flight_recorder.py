"""A recorder of what a process's communicators did last."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from torchcomms.hooks._recorder import Recorder

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

_ENTRIES_SHARED = 2000

_shared: Recorder | None = None
_shared_lock = threading.Lock()


class FlightRecorderHook:
    """Keeps the last operations of communicators: what was called, with which sizes, when, by which thread, and how far it
    came. It costs some microseconds per operation and keeps no tensors.

        recorder = FlightRecorderHook()
        recorder.register_with_comm(comm)
        ...
        print(recorder.dump_json())             # to read
        recorder.dump_file(comm.get_rank())     # for ``python -m torch.distributed.flight_recorder.fr_trace``

    All recorders of a process share one memory of as many operations as ``TORCHCOMM_FR_BUFFER_SIZE`` says (2000). One with
    ``isolated=True`` has its own, of ``max_entries``. One with ``max_entries=0`` records nothing. Children of a
    communicator are recorded as well. When a communicator fails, the trace is written to a file before the error is
    raised.

    The file's name is ``TORCHCOMM_FR_DUMP_TEMP_FILE`` and the rank; by default ``comm_lib_trace_rank_0`` and so on, in the
    folder ``torch`` of ``$XDG_CACHE_HOME`` or ``~/.cache``. With ``TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME=1`` the variable
    has the whole name.
    """

    def __init__(self, max_entries: int = 2048, isolated: bool = False) -> None:
        self._records = max_entries > 0
        self._recorder = Recorder(max_entries) if isolated else _shared_recorder()

    def register_with_comm(self, comm: TorchComm) -> None:
        """Records the operations of this communicator from now on. Doing so twice changes nothing."""
        self._recorder.watch(comm, self._records)

    def dump_json(self, include_completed: bool = True) -> str:
        """All that is recorded, oldest first, as JSON; or only what has not been seen to end."""
        return self._recorder.json(include_completed)

    def dump_file(self, rank: int, include_completed: bool = True) -> str:
        """Writes it for torch's analyser, as the trace of this rank; the file's path."""
        return self._recorder.write(rank, include_completed)

    def reset(self) -> None:
        """Forgets all operations so far."""
        self._recorder.reset()

    def is_enabled(self) -> bool:
        """Whether it records."""
        return self._records and self._recorder.is_enabled

    def size(self) -> int:
        """How many operations it has."""
        return len(self._recorder)

    def __len__(self) -> int:
        return self.size()


def _shared_recorder() -> Recorder:
    global _shared  # noqa: PLW0603  (one for the process is what it is)
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
        raise RuntimeError(f"TORCHCOMM_FR_BUFFER_SIZE is a number of entries, not {given!r}") from None
