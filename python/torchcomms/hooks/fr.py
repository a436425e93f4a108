"""The flight recorder, under the name that programs import: ``from torchcomms.hooks.fr import FlightRecorderHook``."""

from __future__ import annotations

from torchcomms.hooks.flight_recorder import FlightRecorderHook

__all__ = ["FlightRecorderHook"]
