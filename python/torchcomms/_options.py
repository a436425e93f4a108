"""Options of communicators and of single calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = [
    "AllGatherOptions",
    "AllGatherPExecOptions",
    "AllGatherPInitOptions",
    "AllGatherSingleOptions",
    "AllGatherVOptions",
    "AllReduceOptions",
    "AllToAllOptions",
    "AllToAllSingleOptions",
    "AllToAllVSingleOptions",
    "AllToAllvSingleOptions",
    "BarrierOptions",
    "BatchP2POptions",
    "BroadcastOptions",
    "CommOptions",
    "GatherOptions",
    "GatherSingleOptions",
    "GetOptions",
    "OperationOptions",
    "PutOptions",
    "ReconfigureOptions",
    "RecvOptions",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ReduceScatterSingleOptions",
    "ReduceScatterVOptions",
    "ScatterOptions",
    "SendOptions",
    "SignalOptions",
    "Timeout",
    "WaitSignalOptions",
]

TimeoutLike = timedelta | float | None
Hints = dict[str, str] | None


class Timeout(timedelta):
    """A timeout: ``Timeout(seconds=5)``. A timedelta or a number of seconds works in its place."""


def seconds(timeout: TimeoutLike) -> float | None:
    """A timeout in seconds; None stays None."""
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if given is None:
        return None
    if isinstance(given, (int, float)):
        if given >= 0:
            return given
        raise ValueError(f"invalid timeout {timeout}: must not be negative")
    raise TypeError(f"invalid timeout {timeout!r}: must be a timedelta or a number of seconds")


@dataclass
class CommOptions:
    """Options of a communicator. None is the value of the environment variable, or the default."""

    abort_process_on_timeout_or_error: bool | None = None
    timeout: TimeoutLike = None
    is_high_priority_stream: bool | None = None
    store: Store | None = None
    name: str | None = None
    hints: Hints = None
    enable_reconfigure: bool = False


@dataclass
class OperationOptions:
    """Options of one operation. There is a class for each operation; methods take it as ``options``."""

    hints: dict[str, str] = field(default_factory=dict)
    timeout: TimeoutLike = None


class BatchP2POptions(OperationOptions):
    """Options of a batch of sends and receives."""


class SendOptions(OperationOptions):
    """Options of :meth:`TorchComm.send`."""


class RecvOptions(OperationOptions):
    """Options of :meth:`TorchComm.recv`."""


class BroadcastOptions(OperationOptions):
    """Options of :meth:`TorchComm.broadcast`."""


class AllReduceOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_reduce`."""


class ReduceOptions(OperationOptions):
    """Options of :meth:`TorchComm.reduce`."""


class AllGatherOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_gather`."""


class AllGatherVOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_gather_v`."""


class AllGatherSingleOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_gather_single`."""


class ReduceScatterOptions(OperationOptions):
    """Options of :meth:`TorchComm.reduce_scatter`."""


class ReduceScatterVOptions(OperationOptions):
    """Options of :meth:`TorchComm.reduce_scatter_v`."""


class ReduceScatterSingleOptions(OperationOptions):
    """Options of :meth:`TorchComm.reduce_scatter_single`."""


class AllToAllSingleOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_to_all_single`."""


class AllToAllVSingleOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_to_all_v_single`."""


class AllToAllOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_to_all`."""


class BarrierOptions(OperationOptions):
    """Options of :meth:`TorchComm.barrier`."""


class ScatterOptions(OperationOptions):
    """Options of :meth:`TorchComm.scatter`."""


class GatherOptions(OperationOptions):
    """Options of :meth:`TorchComm.gather`."""


class GatherSingleOptions(OperationOptions):
    """Options of :meth:`TorchComm.gather_single`."""


class AllGatherPInitOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_gather_p_init`."""


class AllGatherPExecOptions(OperationOptions):
    """Options of :meth:`TorchComm.all_gather_p_exec`."""


class PutOptions(OperationOptions):
    """Options of :meth:`TorchCommWindow.put`."""


class GetOptions(OperationOptions):
    """Options of :meth:`TorchCommWindow.get`."""


class SignalOptions(OperationOptions):
    """Options of :meth:`TorchCommWindow.signal`."""


class WaitSignalOptions(OperationOptions):
    """Options of :meth:`TorchCommWindow.wait_signal`."""


AllToAllvSingleOptions = AllToAllVSingleOptions


def chosen(
    hints: Hints | OperationOptions, timeout: TimeoutLike, options: OperationOptions | None
) -> tuple[Hints, TimeoutLike]:
    """The hints and the timeout of a call. ``options`` may stand in the place of the hints; separate arguments take precedence.

    >>> chosen({"a": "1"}, None, SendOptions(hints={"a": "0", "b": "0"}, timeout=5))
    ({'a': '1', 'b': '0'}, 5)
    """
    if isinstance(hints, OperationOptions):
        if options is not None:
            raise TypeError("invalid arguments: options are given twice")
        hints, options = None, hints
    if options is None:
        return hints, timeout
    if not isinstance(options, OperationOptions):
        raise TypeError(f"invalid options {options!r}: must be SendOptions, AllReduceOptions or the like")
    merged = {**options.hints, **(hints or {})}
    return merged or None, options.timeout if timeout is None else timeout


@dataclass
class ReconfigureOptions:
    """Options of a reconfiguration."""

    uuid: int | str = 0
    init_handles: list[str] | set[str] = field(default_factory=list)
    timeout: TimeoutLike = None
    hints: dict[str, str] = field(default_factory=dict)
