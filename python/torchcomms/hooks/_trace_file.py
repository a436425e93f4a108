"""The file that torch's own analyser (``torch.distributed.flight_recorder``) reads.

It differs from what a person is shown, so that the analyser finds the faults of a program and no others:

- It expects every rank of a group in each of the group's operations, so a transfer is filed under a group of its two
  ends, and a split under one of its ranks. Both ends number a pair's transfers alike, and so they are matched.
- It knows batches only if they have one shape on all ranks, so their transfers are listed one by one.
- It takes what only some ranks have called for a fault, so calls that were refused are left out.
- It knows few operations of uneven sizes, so others are given in terms of those.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchcomms._op_name import OpName
from torchcomms.hooks._entry import Entry, Shapes, Transfer, dtype_name, sizes
from torchcomms.hooks._watched import Watched, listed

_NAMES = {
    OpName.all_gather_p_exec: "all_gather_single",
    OpName.all_to_all_v_single: "all_to_all_single",
    OpName.gather_single: "gather",
}


def path_for(rank: int) -> Path:
    """Where the trace of a rank goes."""
    given = os.environ.get("TORCHCOMM_FR_DUMP_TEMP_FILE")
    if given and os.environ.get("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME") == "1":
        return Path(given)
    if not given:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        given = os.path.join(cache, "torch", "comm_lib_trace_rank_")
    return Path(f"{given}{rank}")


def write(rank: int, heading: dict[str, Any], entries: list[Entry]) -> str:
    """Writes the trace of a rank, in one step; its path."""
    path = path_for(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    groups: dict[str, Any] = {}
    filed = [one for entry in entries if not entry.is_refused for one in _filed(entry, groups)]
    trace = {**heading, "pg_config": {**heading["pg_config"], **groups}, "entries": filed}
    # The analyser takes all files of the folder with this name's beginning, so a file that is being written has another.
    fd, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            pickle.dump(trace, file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return str(path)


def _filed(entry: Entry, groups: dict[str, Any]) -> Iterator[dict[str, Any]]:
    told = entry.told()
    if entry.is_p2p:
        for transfer in entry.transfers:
            yield {**told, **_transferred(entry.group, transfer, groups)}
        return
    if entry.op is OpName.split:
        if not entry.ranks:  # this rank is in no part, and others do not wait for it
            return
        members = sorted(map(entry.group.global_rank, entry.ranks))
        told["process_group"] = [_group(entry.group, "split", members, groups), entry.group.backend]
        told["collective_seq_id"] = entry.split_number
    told["profiling_name"] = f"{entry.group.backend}:{_NAMES.get(entry.op, entry.op.name)}"
    told["input_sizes"], told["output_sizes"] = map(sizes, _even(entry))
    yield told


def _even(entry: Entry) -> tuple[Shapes, Shapes]:
    """The sizes of both sides, as the analyser compares them between ranks."""
    inputs, outputs = entry.input_shapes, entry.output_shapes
    if entry.op is OpName.all_to_all_v_single:
        return _rows(inputs, entry.input_splits), _rows(outputs, entry.output_splits)
    if entry.op is OpName.all_to_all:
        # It adds up first tensors alone.
        return _total(inputs), _total(outputs)
    # Each rank has a part of its own size on one side, and all parts on the other, which is what has to be the same.
    if entry.op is OpName.all_gather_v:
        return outputs, outputs
    if entry.op is OpName.reduce_scatter_v:
        return inputs, inputs
    return inputs, outputs


def _rows(shapes: Shapes, splits: list[int] | None) -> Shapes:
    return tuple((sum(splits or ()), *shape[1:]) for shape in shapes)


def _total(shapes: Shapes) -> Shapes:
    return ((sum(math.prod(shape) for shape in shapes),),)


def _transferred(group: Watched, transfer: Transfer, groups: dict[str, Any]) -> dict[str, Any]:
    ends = [group.global_rank(transfer.src), group.global_rank(transfer.dst)]
    members = sorted(ends)
    src, dst = (members.index(rank) for rank in ends)
    # Both directions of a pair are one group, and a number occurs once in it.
    number = 2 * transfer.number + (src > dst)
    moved, kind, nothing = [list(transfer.shape)], [dtype_name(transfer.dtype)], list[Any]()
    is_send = transfer.is_send
    name = f"send {src}->{dst}" if is_send else f"recv {dst}<-{src}"
    return {
        "process_group": [_group(group, "pair", members, groups), group.backend],
        "profiling_name": f"{group.backend}:{name}",
        "collective_seq_id": number,
        "p2p_seq_id": number,
        "input_sizes": moved if is_send else nothing,
        "input_dtypes": kind if is_send else nothing,
        "output_sizes": nothing if is_send else moved,
        "output_dtypes": nothing if is_send else kind,
    }


def _group(group: Watched, kind: str, members: list[int], groups: dict[str, Any]) -> str:
    name = f"{group.name}:{kind}:{'-'.join(map(str, members))}"
    groups[name] = {"name": name, "desc": group.backend, "ranks": listed(members)}
    return name
