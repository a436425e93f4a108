"""The flight recorder in torch's debug server: a handler that each rank's worker server calls."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcomms.hooks._recorder import Recorder

NAME = "torchcomms_fr_trace_json"

_lock = threading.Lock()
_is_added = False


def add_handler(recorder: Callable[[], Recorder]) -> None:
    """Makes torch's worker server answer ``/handler/torchcomms_fr_trace_json`` with the trace, as JSON.

    With the parameter ``onlyactive=true`` it has only operations that have not ended. Calling it again does nothing.
    """
    global _is_added  # noqa: PLW0603
    with _lock:
        if _is_added:
            return
        _is_added = True
    try:
        from torch._C._distributed_c10d import _register_handler
    except ImportError:  # torch without torch.distributed, or before its debug server
        return

    def handle(request: Any, response: Any) -> None:
        try:
            is_all = request.get_param("onlyactive").lower() != "true"
            content, status = recorder().trace_json(is_all), 200
        except Exception as error:  # it would end the server's thread
            logging.getLogger("torchcomms").exception("dumping the flight recorder failed")
            content, status = f"dumping the flight recorder failed: {error}", 500
        response.set_content(content, "application/json" if status == 200 else "text/plain")
        response.set_status(status)

    # Torch drops its reference after the end of the interpreter, when nothing can be freed any more.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    try:
        _register_handler(NAME, handle)
    except RuntimeError as error:  # another package has one of this name
        logging.getLogger("torchcomms").warning(
            "the debug server does not show the flight recorder: %s", error
        )
