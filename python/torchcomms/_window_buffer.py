"""Memory of this rank that kernels put from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class RegisteredBuffer:
    """A tensor that kernels may pass to ``put`` of a window. Made by ``window.register_local_buffer(tensor)``.

    Its memory stays allocated until it is deregistered. Kernels take the address; they can put from any memory of this rank.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    @property
    def address(self) -> int:
        """The address, for kernels."""
        return self._tensor.data_ptr()

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._tensor.nbytes

    def get_tensor(self) -> torch.Tensor:
        """The tensor itself."""
        return self._tensor

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, device={self._tensor.device})"
