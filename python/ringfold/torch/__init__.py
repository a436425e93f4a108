"""The backend of ``torch.distributed``. Importing this module registers it:

    import ringfold.torch
    import torch.distributed as dist

    dist.init_process_group("ringfold")

Use ``"ringfold"`` instead of ``"gloo"``. From torch 2.14 on the import is not needed: torch finds the backend by its name.
``ringfold.torch.Options`` has the settings of a process group. ``ringfold.torch.empty`` makes tensors that the other ranks of
the host read in place. ``ringfold.torch.check_replicas`` finds ranks whose models differ.
"""

from __future__ import annotations

from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError as error:  # pragma: no cover - tested in an environment without torch
    raise ImportError(
        "ringfold.torch is a backend of torch.distributed, and PyTorch is not installed: pip install torch. "
        "(ringfold.Run and pccl work without it.)"
    ) from error

from ringfold._shared_buffer import Shape, allocate, dimensions
from ringfold.torch.divergence import DivergenceError, check_replicas
from torch._C._distributed_c10d import Backend

__all__ = ["DivergenceError", "Options", "check_replicas", "empty", "register"]


class Options(Backend.Options):
    """Settings of one process group, by name; they take precedence over variables and the file of settings:

        dist.init_process_group("ringfold", pg_options=ringfold.torch.Options(reproducible=True))

    Unknown names and invalid values are errors of ``init_process_group`` or ``new_group``.
    """

    def __init__(self, **settings: bool | int | str) -> None:
        super().__init__("ringfold")
        self._settings = settings

    def hints(self) -> dict[str, str]:
        """The settings as hints of torchcomms."""
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self._settings.items()
        }
        return {f"ringfold::{name}": text for name, text in texts.items()}


def empty(shape: Shape, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeros that the other ranks of the host read in place, as ``ringfold.empty`` makes arrays.

    Large all-reduces and reduce-scatters of a group on one host are faster if the tensors of all ranks were made by this
    function: each rank reads those of the others where they lie, instead of copies. Views share this. Copies, and tensors that
    were pickled or moved to another device, do not. ``dtype`` is torch's default dtype if it is not given.
    """
    kind = torch.get_default_dtype() if dtype is None else dtype
    lengths = dimensions(shape)
    memory = allocate(lengths, kind.itemsize)
    if memory is None:
        return torch.empty(lengths, dtype=kind)
    # The storage keeps the memory.
    return torch.frombuffer(memory, dtype=kind).view(lengths)


def register() -> None:
    """Registers the backend as ``"ringfold"``. May be repeated."""
    if not hasattr(dist.Backend, "RINGFOLD"):
        dist.Backend.register_backend("ringfold", _new_backend, extended_api=True, devices=["cpu", "cuda"])


def _new_backend(options: Any, given: object | None) -> Any:
    """Creates the backend of one group. Options of other backends are ignored: a group may have several."""
    from torchcomms._backend_wrapper import _BackendWrapper
    from torchcomms._c10d_group import direct_group
    from torchcomms._environment import as_rank
    from torchcomms._new_comm import new_comm

    with as_rank(options.group_rank, options.group_size):
        comm = new_comm(
            "ringfold",
            torch.device("cpu"),
            name=f"group {options.group_id}",
            timeout=options.timeout,
            store=options.store,
            hints=given.hints() if isinstance(given, Options) else None,
        )
    backend = _BackendWrapper(comm)
    return direct_group(backend, options) or backend


register()
