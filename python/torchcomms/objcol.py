"""Collectives of Python objects.

    objects = [None] * comm.get_size()
    objcol.all_gather_object(comm, objects, {"rank": comm.get_rank()})

Objects are serialized by ``torch.save`` and loaded by ``torch.load`` with ``weights_only=True``, which accepts tensors, numbers,
strings, lists, dicts and the like, and runs no code of the sender. ``weights_only=False`` accepts any object, and
``TORCHCOMMS_SERIALIZATION=pickle`` uses ``pickle``; both are only for ranks that trust each other. All functions fill the given
lists and return None. ``timeout`` limits each operation that they consist of.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
from typing import TYPE_CHECKING, Any

import torch

from torchcomms._options import BatchP2POptions, TimeoutLike

if TYPE_CHECKING:
    from torchcomms._comm import TorchComm

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def all_gather_object(
    comm: TorchComm,
    object_list: list[Any],
    obj: Any,
    timeout: TimeoutLike = None,
    weights_only: bool = True,
) -> None:
    """Gathers the objects of all ranks: ``object_list[r]`` is that of rank r."""
    _require_length(object_list, comm.get_size(), "object_list")
    mine = _serialize(obj)
    sizes = _gathered_sizes(comm, len(mine), timeout)
    parts = [_empty(comm, size) for size in sizes]
    if comm.get_size() == 1:
        parts[0].copy_(_tensor(comm, mine))
    else:
        comm.all_gather_v(parts, _tensor(comm, mine), False, timeout=timeout)
    object_list[:] = [_deserialize(_bytes(part), weights_only) for part in parts]


def gather_object(
    comm: TorchComm,
    obj: Any,
    root: int,
    object_gather_list: list[Any] | None = None,
    timeout: TimeoutLike = None,
    weights_only: bool = True,
) -> None:
    """Gathers the objects of all ranks in the root's ``object_gather_list``; the others may omit it."""
    _require_rank(comm, root, "root")
    is_root = comm.get_rank() == root
    if is_root:
        _require_length(object_gather_list, comm.get_size(), "object_gather_list of the root")
    mine = _serialize(obj)
    sizes = _gathered_sizes(comm, len(mine), timeout)
    if not is_root:
        comm.send(_tensor(comm, mine), root, False, timeout=timeout)
        return
    assert object_gather_list is not None
    parts = {rank: _empty(comm, size) for rank, size in enumerate(sizes) if rank != root}
    if parts:
        batch = comm.batch_op_create()
        for rank, part in parts.items():
            batch.recv(part, rank)
        batch.issue(False, BatchP2POptions(timeout=timeout))
    object_gather_list[:] = [
        _deserialize(mine if rank == root else _bytes(parts[rank]), weights_only)
        for rank in range(len(sizes))
    ]


def scatter_object_list(
    comm: TorchComm,
    root: int,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    timeout: TimeoutLike = None,
    weights_only: bool = True,
) -> None:
    """Sends the root's ``scatter_object_input_list[r]`` to rank r, as ``scatter_object_output_list[0]``."""
    _require_rank(comm, root, "root")
    if not scatter_object_output_list:
        raise ValueError("scatter_object_output_list is empty: it must have one element")
    size = _empty(comm, 1, of_sizes=True)
    if comm.get_rank() != root:
        comm.scatter(size, [], root, False, timeout=timeout)
        part = _empty(comm, int(size.item()))
        comm.recv(part, root, False, timeout=timeout)
        scatter_object_output_list[0] = _deserialize(_bytes(part), weights_only)
        return
    _require_length(scatter_object_input_list, comm.get_size(), "scatter_object_input_list of the root")
    assert scatter_object_input_list is not None
    parts = [_serialize(one) for one in scatter_object_input_list]
    if len(parts) > 1:
        comm.scatter(size, [_sizes(comm, [len(part)]) for part in parts], root, False, timeout=timeout)
        batch = comm.batch_op_create()
        for rank, one in enumerate(parts):
            if rank != root:
                batch.send(_tensor(comm, one), rank)
        batch.issue(False, BatchP2POptions(timeout=timeout))
    scatter_object_output_list[0] = _deserialize(parts[root], weights_only)


def broadcast_object_list(
    comm: TorchComm,
    object_list: list[Any],
    root: int,
    timeout: TimeoutLike = None,
    weights_only: bool = True,
) -> None:
    """Copies the root's objects to ``object_list`` of all ranks, which all have the same length."""
    _require_rank(comm, root, "root")
    _require_some(object_list)
    if comm.get_size() == 1:
        return
    if comm.get_rank() == root:
        parts = [_serialize(one) for one in object_list]
        comm.broadcast(_sizes(comm, [len(part) for part in parts]), root, False, timeout=timeout)
        comm.broadcast(_tensor(comm, b"".join(parts)), root, False, timeout=timeout)
        return
    sizes = _empty(comm, len(object_list), of_sizes=True)
    comm.broadcast(sizes, root, False, timeout=timeout)
    joined = _empty(comm, int(sizes.sum().item()))
    comm.broadcast(joined, root, False, timeout=timeout)
    object_list[:] = _deserialize_all(_bytes(joined), sizes.tolist(), weights_only)


def send_object_list(comm: TorchComm, object_list: list[Any], dst: int, timeout: TimeoutLike = None) -> None:
    """Sends objects to a rank, which receives them with a list of the same length."""
    _require_some(object_list)
    parts = [_serialize(one) for one in object_list]
    comm.send(_sizes(comm, [len(part) for part in parts]), dst, False, timeout=timeout)
    comm.send(_tensor(comm, b"".join(parts)), dst, False, timeout=timeout)


def recv_object_list(
    comm: TorchComm,
    object_list: list[Any],
    src: int,
    timeout: TimeoutLike = None,
    weights_only: bool = True,
) -> None:
    """Receives objects from the rank ``src``."""
    _require_some(object_list)
    sizes = _empty(comm, len(object_list), of_sizes=True)
    comm.recv(sizes, src, False, timeout=timeout)
    joined = _empty(comm, int(sizes.sum().item()))
    comm.recv(joined, src, False, timeout=timeout)
    object_list[:] = _deserialize_all(_bytes(joined), sizes.tolist(), weights_only)


# --- objects and bytes ---------------------------------------------------------------------------------------------


def _uses_pickle() -> bool:
    wanted = os.environ.get("TORCHCOMMS_SERIALIZATION", "").lower()
    if wanted in ("", "torch", "torch_save"):
        return False
    if wanted == "pickle":
        return True
    raise ValueError(f"invalid TORCHCOMMS_SERIALIZATION={wanted!r}: must be 'torch' or 'pickle'")


def _serialize(obj: Any) -> bytes:
    if _uses_pickle():
        return pickle.dumps(obj)
    file = io.BytesIO()
    torch.save(obj, file)
    return file.getvalue()


def _deserialize(data: bytes, weights_only: bool) -> Any:
    if _uses_pickle():
        return pickle.loads(data)
    return torch.load(io.BytesIO(data), weights_only=weights_only)


def _deserialize_all(joined: bytes, sizes: list[int], weights_only: bool) -> list[Any]:
    objects = []
    start = 0
    for size in sizes:
        objects.append(_deserialize(joined[start : start + size], weights_only))
        start += size
    return objects


# --- bytes and tensors on the communicator's device ----------------------------------------------------------------


def _tensor(comm: TorchComm, data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(comm.get_device())


def _bytes(tensor: torch.Tensor) -> bytes:
    host = tensor.cpu()
    # torch has no other way without numpy, which may not be installed.
    return ctypes.string_at(host.data_ptr(), host.numel())


def _sizes(comm: TorchComm, sizes: list[int]) -> torch.Tensor:
    return torch.tensor(sizes, dtype=torch.int64, device=comm.get_device())


def _empty(comm: TorchComm, elements: int, of_sizes: bool = False) -> torch.Tensor:
    # Zeros: the backend "fake" moves no data, and random sizes would be used otherwise.
    if of_sizes:
        return torch.zeros(elements, dtype=torch.int64, device=comm.get_device())
    return torch.empty(elements, dtype=torch.uint8, device=comm.get_device())


def _gathered_sizes(comm: TorchComm, size: int, timeout: TimeoutLike) -> list[int]:
    if comm.get_size() == 1:
        return [size]
    sizes = _empty(comm, comm.get_size(), of_sizes=True)
    comm.all_gather_single(sizes, _sizes(comm, [size]), False, timeout=timeout)
    gathered: list[int] = sizes.tolist()
    return gathered


# --- arguments -----------------------------------------------------------------------------------------------------


def _require_some(object_list: list[Any]) -> None:
    if not object_list:
        raise ValueError("object_list is empty")


def _require_length(objects: list[Any] | None, size: int, name: str) -> None:
    if objects is None or len(objects) != size:
        given = "missing" if objects is None else f"{len(objects)} elements"
        raise ValueError(f"invalid {name}: {given}, but {size} are needed, one per rank")


def _require_rank(comm: TorchComm, rank: int, name: str) -> None:
    if not 0 <= rank < comm.get_size():
        raise RuntimeError(f"{name} {rank} is out of range: ranks are 0 to {comm.get_size() - 1}")
