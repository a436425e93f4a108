"""The backend class of communicators that are made with ``gloo``."""

from __future__ import annotations

from torchcomms._engine import Engine


class TorchCommGloo(Engine):
    """The engine under the name ``gloo``."""
