"""The file that torch's own analyser (``torch.distributed.flight_recorder``) reads.

It differs from what a person is shown, so that the analyser finds the faults of a program and no others:

- It expects every rank of a group in each of the group's operations, so a transfer is filed under a group of its two
  ends, and a split under one of its ranks. Both ends number a pair's transfers alike, and so they are matched.
- It knows batches only if they have one shape on all ranks, so their transfers are listed one by one.
- It tells groups apart by their names, so a second communicator of the same name has another one.
- It takes what only some ranks have called for a fault, so calls that were refused are left out.
- It knows few operations of uneven sizes, so others are given in terms of those.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
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
    filing = _Filing([entry for entry in entries if not entry.is_refused])
    trace = {**heading, "entries": filing.entries}
    trace["pg_config"] = {**heading["pg_config"], **filing.groups}
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


class _Filing:
    """Entries as the analyser wants them, and the groups that they are filed under."""

    def __init__(self, entries: list[Entry]) -> None:
        self.groups: dict[str, Any] = {}
        self._labels = _labels({id(entry.group): entry.group for entry in entries}.values())
        self.entries = [filed for entry in entries for filed in self._filed(entry)]

    def _filed(self, entry: Entry) -> Iterator[dict[str, Any]]:
        told, group = entry.told(), entry.group
        if entry.is_p2p:
            for transfer in entry.transfers:
                yield {**told, **self._transferred(group, transfer)}
            return
        if entry.op is not OpName.split:
            told["process_group"] = self._group(group, self._labels[id(group)], group.ranks)
        elif entry.ranks:
            members = sorted(map(group.global_rank, entry.ranks))
            told["process_group"] = self._part(group, "split", members)
            told["collective_seq_id"] = entry.split_number
        else:  # this rank is in no part, and others do not wait for it
            return
        told["profiling_name"] = f"{group.backend}:{_NAMES.get(entry.op, entry.op.name)}"
        told["input_sizes"], told["output_sizes"] = map(sizes, _even(entry))
        yield told

    def _transferred(self, group: Watched, transfer: Transfer) -> dict[str, Any]:
        ends = [group.global_rank(transfer.src), group.global_rank(transfer.dst)]
        members = sorted(ends)
        src, dst = (members.index(rank) for rank in ends)
        # Both directions of a pair are one group, and a number occurs once in it.
        number = 2 * transfer.number + (src > dst)
        moved, kind, nothing = [list(transfer.shape)], [dtype_name(transfer.dtype)], list[Any]()
        is_send = transfer.is_send
        name = f"send {src}->{dst}" if is_send else f"recv {dst}<-{src}"
        return {
            "process_group": self._part(group, "pair", members),
            "profiling_name": f"{group.backend}:{name}",
            "collective_seq_id": number,
            "p2p_seq_id": number,
            "input_sizes": moved if is_send else nothing,
            "input_dtypes": kind if is_send else nothing,
            "output_sizes": nothing if is_send else moved,
            "output_dtypes": nothing if is_send else kind,
        }

    def _part(self, group: Watched, kind: str, members: list[int]) -> list[str]:
        name = f"{self._labels[id(group)]}:{kind}:{'-'.join(map(str, members))}"
        return self._group(group, name, members)

    def _group(self, group: Watched, name: str, members: list[int]) -> list[str]:
        if name not in self.groups:
            self.groups[name] = {"name": name, "desc": group.backend, "ranks": listed(members)}
        return [name, group.backend]


def _labels(groups: Iterable[Watched]) -> dict[int, str]:
    """What communicators are called. Several may have one name; all ranks make them in the same order."""
    every = list(groups)
    names = Counter(group.name for group in every)
    return {
        id(group): f"{group.name}#{group.namesakes}"
        if names[group.name] > 1 and group.namesakes
        else group.name
        for group in every
    }


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
