"""SIGTERM, the notice of a preemption: the replica leaves at the end of its step."""

from __future__ import annotations

from ringfold.elastic.stop_switch import StopSignals


class StopRequest(StopSignals):
    """Whether the replica has to leave."""

    def __init__(self) -> None:
        super().__init__(self._make, ctrl_c=False)
        self.is_made = False

    def _make(self) -> None:
        self.is_made = True
