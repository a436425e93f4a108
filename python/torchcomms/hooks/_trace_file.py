"""The trace file for torch's analyser (``torch.distributed.flight_recorder``).

It differs from the dump for people, so that the analyser reports only the faults of a program:

- It expects all ranks of a group in each operation. So a transfer belongs to a group of its two ends, and a split to one of its
  ranks. Both ends number the transfers of a pair alike, so they match.
- It supports batches only if they are equal on all ranks. So their transfers are listed one by one.
- It identifies groups by name. So a second communicator with the same name gets another one.
- It reports calls that only some ranks made. So rejected calls are left out.
- It supports few operations with uneven sizes. So others are expressed by those.
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
from torchcomms.hooks._recorded_comm import RecordedComm, listed

_NAMES = {
    OpName.all_gather_p_exec: "all_gather_single",
    OpName.all_to_all_v_single: "all_to_all_single",
    OpName.gather_single: "gather",
}


def path_for(rank: int) -> Path:
    """The path of a rank's trace."""
    given = os.environ.get("TORCHCOMM_FR_DUMP_TEMP_FILE")
    if given and os.environ.get("TORCHCOMM_FR_DUMP_DYNAMIC_FILE_NAME") == "1":
        return Path(given)
    if not given:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        given = os.path.join(cache, "torch", "comm_lib_trace_rank_")
    return Path(f"{given}{rank}")


def write(rank: int, heading: dict[str, Any], entries: list[Entry]) -> str:
    """Writes the trace of a rank atomically; returns its path."""
    path = path_for(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    trace = converted(heading, entries)
    # Another prefix while it is written: the analyser reads all files of the folder with the usual one.
    fd, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            pickle.dump(trace, file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return str(path)


def converted(heading: dict[str, Any], entries: list[Entry]) -> dict[str, Any]:
    """The trace in the analyser's form."""
    converter = _Converter([entry for entry in entries if not entry.is_rejected])
    groups = {**heading["pg_config"], **converter.groups}
    return {**heading, "pg_config": groups, "entries": converter.entries}


class _Converter:
    """Entries in the analyser's form, and their groups."""

    def __init__(self, entries: list[Entry]) -> None:
        self.groups: dict[str, Any] = {}
        self._labels = _labels({id(entry.group): entry.group for entry in entries}.values())
        self.entries = [converted for entry in entries for converted in self._convert(entry)]

    def _convert(self, entry: Entry) -> Iterator[dict[str, Any]]:
        fields, group = entry.to_dict(), entry.group
        if entry.is_p2p:
            for transfer in entry.transfers:
                yield {**fields, **self._transfer(group, transfer)}
            return
        if entry.op is not OpName.split:
            fields["process_group"] = self._group(group, self._labels[id(group)], group.ranks)
        elif entry.ranks:
            members = sorted(map(group.global_rank, entry.ranks))
            fields["process_group"] = self._part(group, "split", members)
            fields["collective_seq_id"] = entry.split_number
        else:  # this rank is not in the split, and the others do not wait for it
            return
        fields["profiling_name"] = f"{group.backend}:{_NAMES.get(entry.op, entry.op.name)}"
        fields["input_sizes"], fields["output_sizes"] = map(sizes, _even(entry))
        yield fields

    def _transfer(self, group: RecordedComm, transfer: Transfer) -> dict[str, Any]:
        ends = [group.global_rank(transfer.src), group.global_rank(transfer.dst)]
        members = sorted(ends)
        src, dst = (members.index(rank) for rank in ends)
        # Both directions of a pair are one group, where numbers must be unique.
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

    def _part(self, group: RecordedComm, kind: str, members: list[int]) -> list[str]:
        name = f"{self._labels[id(group)]}:{kind}:{'-'.join(map(str, members))}"
        return self._group(group, name, members)

    def _group(self, group: RecordedComm, name: str, members: list[int]) -> list[str]:
        if name not in self.groups:
            self.groups[name] = {"name": name, "desc": group.backend, "ranks": listed(members)}
        return [name, group.backend]


def _labels(groups: Iterable[RecordedComm]) -> dict[int, str]:
    """Unique names of communicators. All ranks make those of one name in the same order."""
    every = list(groups)
    names = Counter(group.name for group in every)
    return {
        id(group): f"{group.name}#{group.namesakes}"
        if names[group.name] > 1 and group.namesakes
        else group.name
        for group in every
    }


def _even(entry: Entry) -> tuple[Shapes, Shapes]:
    """Input and output sizes in the form that the analyser compares between ranks."""
    inputs, outputs = entry.input_shapes, entry.output_shapes
    if entry.op is OpName.all_to_all_v_single:
        return _rows(inputs, entry.input_splits), _rows(outputs, entry.output_splits)
    if entry.op is OpName.all_to_all:
        # It adds up only the first tensors.
        return _total(inputs), _total(outputs)
    # One side is this rank's part, whose size differs; the other side is all parts, which must be the same on all ranks.
    if entry.op is OpName.all_gather_v:
        return outputs, outputs
    if entry.op is OpName.reduce_scatter_v:
        return inputs, inputs
    return inputs, outputs


def _rows(shapes: Shapes, splits: list[int] | None) -> Shapes:
    return tuple((sum(splits or ()), *shape[1:]) for shape in shapes)


def _total(shapes: Shapes) -> Shapes:
    return ((sum(math.prod(shape) for shape in shapes),),)
