"""The state on its way to replicas that are behind, while the step computes."""

from __future__ import annotations

import logging
import threading

import pccl
from ringfold.elastic.reduction import can_retry

logger = logging.getLogger("ringfold")


class Transfer:
    """A sync of the state that runs beside a step."""

    def __init__(self, communicator: pccl.Communicator, state: pccl.SharedState, is_behind: bool) -> None:
        self.is_behind = is_behind
        self._communicator, self._state = communicator, state
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ringfold-transfer", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits for its end. A replica that has the state does not mind if others were lost, or hold another one: that is found when
        tensors are compared."""
        self._thread.join()
        error = self._error
        if error is None:
            return
        is_harmless = isinstance(error, pccl.PCCLError) and (
            can_retry(error) or error.kind == "lost-election"
        )
        if self.is_behind or not is_harmless:
            raise error
        logger.warning("a transfer of the state failed: %s", error)

    def _run(self) -> None:
        strategies = pccl.SharedStateSyncStrategy
        strategy = strategies.RECEIVE_ONLY if self.is_behind else strategies.SEND_ONLY
        try:
            self._communicator.sync_shared_state(self._state, strategy, beside_collectives=True)
        except BaseException as error:  # noqa: BLE001 - raised by wait()
            self._error = error
