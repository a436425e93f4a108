"""Memory that windows can use."""

from __future__ import annotations

from torchcomms._registry import _is_backend_registered, registered_class, unknown


def get_mem_allocator(backend: str) -> None:
    """The allocator whose memory windows of this backend need: None, which stands for torch's own, because any memory
    will do here. ``torch.cuda.MemPool`` takes it as it is.
    """
    if not _is_backend_registered(backend) and registered_class(backend) is None:
        raise unknown(backend)
