"""Hooks that observe a communicator: a flight recorder, a log of its operations, a check for NaN.

    recorder = torchcomms.hooks.FlightRecorderHook()
    recorder.register_with_comm(comm)

A hook lives as long as the communicators that it is registered with.
"""

from __future__ import annotations

from torchcomms.hooks.clog import clog
from torchcomms.hooks.flight_recorder import FlightRecorderHook
from torchcomms.hooks.nan_check import NanCheckHook

__all__ = ["FlightRecorderHook", "NanCheckHook", "clog"]
