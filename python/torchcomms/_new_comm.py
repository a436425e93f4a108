"""The function that makes communicators."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torchcomms import _environment, _hints, _registry
from torchcomms._backend import Backend
from torchcomms._comm import TorchComm
from torchcomms._options import CommOptions, seconds

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

# The backends whose failures end the process by default.
_ENDS_PROCESS = frozenset({"nccl", "ncclx"})

# An infinite timeout is cut to this.
_FOREVER_SECONDS = timedelta(days=36_500).total_seconds()

_numbers = itertools.count()


def new_comm(
    backend: str,
    device: torch.device | str,
    name: str | None = None,
    *,
    abort_process_on_timeout_or_error: bool | None = None,
    timeout: timedelta | float | None = None,
    is_high_priority_stream: bool | None = None,
    store: Store | None = None,
    enable_reconfigure: bool | None = None,
    hints: dict[str, str] | None = None,
    options: CommOptions | None = None,
) -> TorchComm:
    """Makes a communicator of all ranks of the job, which all make the same call.

    - ``backend``: ``"ringfold"``, one of its aliases (``"gloo"``, ``"nccl"``, ``"ncclx"``), ``"fake"``, or a backend of
      :func:`torchcomms.register_backend` or another package.
    - ``device``: the device of its tensors.
    - ``name``: its name, the same on all ranks; optional.
    - ``abort_process_on_timeout_or_error``: whether a failure ends the process instead of raising an error. By default the value
      of ``TORCHCOMM_ABORT_ON_ERROR``; without it, true only for ``nccl`` and ``ncclx``.
    - ``timeout``: the limit for each operation, a timedelta or seconds; by default ``TORCHCOMM_TIMEOUT_SECONDS``, or 600.
    - ``store``: the store by which the ranks find each other; by default a TCPStore at ``MASTER_ADDR``:``MASTER_PORT``. No
      reference to it is kept.
    - ``enable_reconfigure``: connects to no rank yet. Its rank is −1 until :meth:`TorchComm.reconfigure`.
    - ``hints``: settings by name. Unknown ones cause a warning, those that begin with ``ringfold::`` an error.
    - ``options``: all of these in one object; separate arguments take precedence.

    Rank and size come from ``TORCHCOMM_RANK``/``TORCHCOMM_SIZE``, or from the variables of the launcher: Open MPI, PMI, PALS, SLURM,
    torchrun, in this order.
    """
    given: dict[str, Any] = {
        "name": name,
        "abort_process_on_timeout_or_error": abort_process_on_timeout_or_error,
        "timeout": timeout,
        "is_high_priority_stream": is_high_priority_stream,
        "store": store,
        "enable_reconfigure": enable_reconfigure,
        "hints": hints,
    }
    given = {key: value for key, value in given.items() if value is not None}
    return _make(backend, _device(device), replace(options or CommOptions(), **given))


def _make(backend: str, device: torch.device, wanted: CommOptions) -> TorchComm:
    python_class = _registry.registered_class(backend)
    is_engine = python_class is None and backend in _registry.ENGINE_NAMES
    if python_class is None and not is_engine and backend != _registry.FAKE:
        raise _registry.unknown_backend(backend)
    _hints.check_hints(wanted.hints)
    options = _with_defaults(backend, wanted, is_engine)
    # The number may differ between ranks, so it is not used to find each other.
    name = wanted.name or f"torchcomm_{next(_numbers)}"
    made: Backend
    if python_class is not None:
        from torchcomms._python_backend import PythonBackend

        impl = python_class()
        impl.init(device, name, replace(options, name=name, store=wanted.store))
        made = PythonBackend(impl)
    elif is_engine:
        from torchcomms._engine import new_engine

        made = new_engine(backend, options, wanted.store, device)
    else:
        from torchcomms._fake import FakeBackend

        made = FakeBackend()
    options.name = name
    return TorchComm(made, device, name, options)


def _with_defaults(backend: str, wanted: CommOptions, is_engine: bool) -> CommOptions:
    """The options with defaults of the environment, and without the store, which belongs to the caller."""
    aborts = wanted.abort_process_on_timeout_or_error
    by_environment = _environment.aborts_process()
    if aborts is None:
        aborts = backend in _ENDS_PROCESS if by_environment is None else by_environment
    limit = seconds(wanted.timeout)
    if limit is None:
        limit = _setting_seconds(wanted) if is_engine else None
    if limit is None:
        limit = _environment.timeout_seconds()
    is_high = wanted.is_high_priority_stream
    if is_high is None:
        is_high = _hints.wants_high_priority(wanted.hints)
    return replace(
        wanted,
        abort_process_on_timeout_or_error=aborts,
        timeout=timedelta(seconds=min(limit, _FOREVER_SECONDS)),
        is_high_priority_stream=bool(is_high),
        store=None,
        hints=dict(wanted.hints) if wanted.hints else None,
        enable_reconfigure=bool(wanted.enable_reconfigure),
    )


def _setting_seconds(wanted: CommOptions) -> float | None:
    """The setting ``operation_timeout``. A hint has priority over ``TORCHCOMM_TIMEOUT_SECONDS``, a variable has not."""
    if _environment.has_timeout() and _hints.OPERATION_TIMEOUT not in (wanted.hints or {}):
        return None
    return _hints.setting_seconds(wanted.hints, "operation_timeout")


def _device(device: torch.device | str) -> torch.device:
    import torch

    if isinstance(device, (torch.device, str)):
        return torch.device(device)
    raise TypeError(f"invalid device {device!r}: must be a torch.device or its name")
