"""Collectives of Python objects.

    objects = [None] * comm.get_size()
    objcol.all_gather_object(comm, objects, {"rank": comm.get_rank()})

Objects are written by ``torch.save`` and read by ``torch.load`` with ``weights_only=True``, which takes tensors, numbers,
texts, lists, dicts and the like, and can't run code of the sender's. ``weights_only=False`` takes any object, and
``TORCHCOMMS_SERIALIZATION=pickle`` uses ``pickle`` instead, for ranks that trust each other. All functions fill the given
lists and return None. ``timeout`` bounds each of the operations that they consist of.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from torchcomms._comm import TorchComm

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]

Timed = timedelta | float | None


def all_gather_object(
    comm: TorchComm,
    object_list: list[Any],
    obj: Any,
    timeout: Timed = None,
    weights_only: bool = True,
) -> None:
    """Every rank ends with everyone's objects: ``object_list[r]`` is that of rank r."""
    _require_length(object_list, comm.get_size(), "object_list")
    mine = _written(obj)
    sizes = _gathered_sizes(comm, len(mine), timeout)
    parts = [_room(comm, size) for size in sizes]
    if comm.get_size() == 1:
        parts[0].copy_(_tensor(comm, mine))
    else:
        comm.all_gather_v(parts, _tensor(comm, mine), False, timeout=timeout)
    object_list[:] = [_read(_bytes(part), weights_only) for part in parts]


def gather_object(
    comm: TorchComm,
    obj: Any,
    root: int,
    object_gather_list: list[Any] | None = None,
    timeout: Timed = None,
    weights_only: bool = True,
) -> None:
    """The root ends with everyone's objects in ``object_gather_list``, which the others may leave out."""
    _require_rank(comm, root, "root")
    is_root = comm.get_rank() == root
    if is_root:
        _require_length(object_gather_list, comm.get_size(), "object_gather_list of the root")
    mine = _written(obj)
    sizes = _gathered_sizes(comm, len(mine), timeout)
    if not is_root:
        comm.send(_tensor(comm, mine), root, False, timeout=timeout)
        return
    assert object_gather_list is not None
    parts = {rank: _room(comm, size) for rank, size in enumerate(sizes) if rank != root}
    if parts:
        batch = comm.batch_op_create()
        for rank, part in parts.items():
            batch.recv(part, rank)
        batch.issue(False, _batch_options(timeout))
    object_gather_list[:] = [
        _read(mine if rank == root else _bytes(parts[rank]), weights_only) for rank in range(len(sizes))
    ]


def scatter_object_list(
    comm: TorchComm,
    root: int,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    timeout: Timed = None,
    weights_only: bool = True,
) -> None:
    """Rank r ends with the root's ``scatter_object_input_list[r]`` in ``scatter_object_output_list[0]``."""
    _require_rank(comm, root, "root")
    if not scatter_object_output_list:
        raise ValueError("scatter_object_output_list needs room for one object, and is empty")
    size = _room(comm, 1, of_sizes=True)
    if comm.get_rank() != root:
        comm.scatter(size, [], root, False, timeout=timeout)
        part = _room(comm, int(size.item()))
        comm.recv(part, root, False, timeout=timeout)
        scatter_object_output_list[0] = _read(_bytes(part), weights_only)
        return
    _require_length(scatter_object_input_list, comm.get_size(), "scatter_object_input_list of the root")
    assert scatter_object_input_list is not None
    parts = [_written(one) for one in scatter_object_input_list]
    if len(parts) > 1:
        comm.scatter(size, [_sizes(comm, [len(part)]) for part in parts], root, False, timeout=timeout)
        batch = comm.batch_op_create()
        for rank, one in enumerate(parts):
            if rank != root:
                batch.send(_tensor(comm, one), rank)
        batch.issue(False, _batch_options(timeout))
    scatter_object_output_list[0] = _read(parts[root], weights_only)


def broadcast_object_list(
    comm: TorchComm,
    object_list: list[Any],
    root: int,
    timeout: Timed = None,
    weights_only: bool = True,
) -> None:
    """Every rank ends with the root's objects in ``object_list``, which has one length on all ranks."""
    _require_rank(comm, root, "root")
    _require_some(object_list)
    if comm.get_size() == 1:
        return
    if comm.get_rank() == root:
        parts = [_written(one) for one in object_list]
        comm.broadcast(_sizes(comm, [len(part) for part in parts]), root, False, timeout=timeout)
        comm.broadcast(_tensor(comm, b"".join(parts)), root, False, timeout=timeout)
        return
    sizes = _room(comm, len(object_list), of_sizes=True)
    comm.broadcast(sizes, root, False, timeout=timeout)
    joined = _room(comm, int(sizes.sum().item()))
    comm.broadcast(joined, root, False, timeout=timeout)
    object_list[:] = _read_all(_bytes(joined), sizes.tolist(), weights_only)


def send_object_list(comm: TorchComm, object_list: list[Any], dst: int, timeout: Timed = None) -> None:
    """Sends objects to a rank, which receives them with a list of the same length."""
    _require_some(object_list)
    parts = [_written(one) for one in object_list]
    comm.send(_sizes(comm, [len(part) for part in parts]), dst, False, timeout=timeout)
    comm.send(_tensor(comm, b"".join(parts)), dst, False, timeout=timeout)


def recv_object_list(
    comm: TorchComm,
    object_list: list[Any],
    src: int,
    timeout: Timed = None,
    weights_only: bool = True,
) -> None:
    """Fills a list with what the rank ``src`` sends."""
    _require_some(object_list)
    sizes = _room(comm, len(object_list), of_sizes=True)
    comm.recv(sizes, src, False, timeout=timeout)
    joined = _room(comm, int(sizes.sum().item()))
    comm.recv(joined, src, False, timeout=timeout)
    object_list[:] = _read_all(_bytes(joined), sizes.tolist(), weights_only)


# --- objects and bytes ---------------------------------------------------------------------------------------------


def _uses_pickle() -> bool:
    wanted = os.environ.get("TORCHCOMMS_SERIALIZATION", "").lower()
    if wanted in ("", "torch", "torch_save"):
        return False
    if wanted == "pickle":
        return True
    raise ValueError(f"TORCHCOMMS_SERIALIZATION is 'torch' or 'pickle', not {wanted!r}")


def _written(obj: Any) -> bytes:
    if _uses_pickle():
        return pickle.dumps(obj)
    import torch

    file = io.BytesIO()
    torch.save(obj, file)
    return file.getvalue()


def _read(data: bytes, weights_only: bool) -> Any:
    if _uses_pickle():
        return pickle.loads(data)
    import torch

    return torch.load(io.BytesIO(data), weights_only=weights_only)


def _read_all(joined: bytes, sizes: list[int], weights_only: bool) -> list[Any]:
    objects = []
    start = 0
    for size in sizes:
        objects.append(_read(joined[start : start + size], weights_only))
        start += size
    return objects


# --- bytes and tensors, where the communicator wants them ----------------------------------------------------------


def _tensor(comm: TorchComm, data: bytes) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(comm.get_device())


def _bytes(tensor: torch.Tensor) -> bytes:
    host = tensor.cpu()
    # Tensors have no bytes() of their own without numpy, which may not be there.
    return ctypes.string_at(host.data_ptr(), host.numel())


def _sizes(comm: TorchComm, sizes: list[int]) -> torch.Tensor:
    import torch

    return torch.tensor(sizes, dtype=torch.int64, device=comm.get_device())


def _room(comm: TorchComm, elements: int, of_sizes: bool = False) -> torch.Tensor:
    import torch

    # Zeros, so that a backend that moves nothing leaves no random numbers to be taken for sizes.
    if of_sizes:
        return torch.zeros(elements, dtype=torch.int64, device=comm.get_device())
    return torch.empty(elements, dtype=torch.uint8, device=comm.get_device())


def _gathered_sizes(comm: TorchComm, size: int, timeout: Timed) -> list[int]:
    if comm.get_size() == 1:
        return [size]
    sizes = _room(comm, comm.get_size(), of_sizes=True)
    comm.all_gather_single(sizes, _sizes(comm, [size]), False, timeout=timeout)
    told: list[int] = sizes.tolist()
    return told


def _batch_options(timeout: Timed) -> Any:
    from torchcomms._options import BatchP2POptions

    return BatchP2POptions(timeout=timeout)


# --- arguments -----------------------------------------------------------------------------------------------------


def _require_some(object_list: list[Any]) -> None:
    if not object_list:
        raise ValueError("object_list is empty")


def _require_length(objects: list[Any] | None, size: int, name: str) -> None:
    if objects is None or len(objects) != size:
        given = "is missing" if objects is None else f"has {len(objects)}"
        raise ValueError(f"{name} needs {size} places, one for each rank; it {given}")


def _require_rank(comm: TorchComm, rank: int, name: str) -> None:
    if not 0 <= rank < comm.get_size():
        raise RuntimeError(
            f"{name} {rank} is not in the range 0 to {comm.get_size() - 1} of this communicator's ranks"
        )
