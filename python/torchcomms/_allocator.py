"""The allocator for memory of windows."""

from __future__ import annotations

from torchcomms._registry import _is_backend_registered, registered_class, unknown_backend


def get_mem_allocator(backend: str) -> None:
    """The allocator for memory that other ranks can access: None, which is torch's own; ``torch.cuda.MemPool`` accepts it."""
    if not _is_backend_registered(backend) and registered_class(backend) is None:
        raise unknown_backend(backend)
