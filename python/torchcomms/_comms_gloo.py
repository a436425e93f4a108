"""The type of what stands behind a communicator whose backend is called ``gloo``."""

from __future__ import annotations

from torchcomms._engine import Engine


class TorchCommGloo(Engine):
    """Our engine, for those who ask for ``gloo``."""
