"""A communicator in a flight recorder."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from torchcomms._op_name import OpName
from torchcomms._options import seconds
from torchcomms.hooks._entry import Dtypes, Entry, Shapes, Transfer
from torchcomms.hooks._operands import operands, tensors

if TYPE_CHECKING:
    import torch

    from torchcomms._comm import TorchComm
    from torchcomms.hooks._operands import Operand

# The tensors of these depend on the root.
_BY_ROOT = frozenset({OpName.scatter, OpName.gather, OpName.gather_single})


class RecordedComm:
    """The name, ranks and progress of a communicator. Outlives it, because entries refer to it."""

    def __init__(self, comm: TorchComm, pg_id: int, namesakes: int, ranks: list[int] | None) -> None:
        # Weak: the communicator refers to the hooks, and a cycle would delay its end.
        self.comm = weakref.ref(comm)
        self.pg_id = pg_id
        self.name = comm.get_name()
        # The number of earlier ones with the same name.
        self.namesakes = namesakes
        self.backend = comm.get_backend()
        self.version = comm.get_backend_version()
        self._given_ranks = ranks
        self._ranks: list[int] = []
        self._collectives = 0
        self._p2p = 0
        self._transfers: dict[tuple[int, int], int] = {}
        self._splits: dict[tuple[int, ...], int] = {}
        self._last_started = -1
        self._last_completed = -1
        self.update_ranks()

    def update_ranks(self) -> None:
        """Looks up the global ranks. ``reconfigure`` may change them, and torch may know them only later."""
        comm = self.comm()
        if comm is not None:
            size = max(comm.get_size(), 0)
            given = self._given_ranks
            is_current = given is not None and len(given) == size
            self._ranks = (
                (given if is_current else None) or _ranks_in_torch(self.name, size) or list(range(size))
            )

    @property
    def ranks(self) -> list[int]:
        """The global ranks of its members."""
        return self._ranks

    def global_rank(self, rank: int) -> int:
        """The global rank of one of its ranks."""
        return self._ranks[rank] if 0 <= rank < len(self._ranks) else rank

    def describe(self, entry: Entry, args: Any) -> None:
        """Records the tensors of a call."""
        comm = self.comm()
        timeout = comm._timeout if comm is not None else 0.0
        if args.timeout is not None:
            timeout = seconds(args.timeout) or 0.0
        entry.timeout_ms = int(timeout * 1000)
        op = entry.op
        input, output = operands(op, args, self._rank() if op in _BY_ROOT else -1)
        entry.input_shapes, entry.input_dtypes = _shapes_of(input)
        if output is input:
            entry.output_shapes, entry.output_dtypes = entry.input_shapes, entry.input_dtypes
        else:
            entry.output_shapes, entry.output_dtypes = _shapes_of(output)
        if op is OpName.all_to_all_v_single:
            entry.input_splits, entry.output_splits = args.input_split_sizes, args.output_split_sizes

    def number(self, entry: Entry, args: Any) -> None:
        """Assigns the sequence numbers of a call."""
        if not self._collectives and not self._p2p:
            self.update_ranks()
        if entry.is_collective:
            entry.collective_seq = self._collectives
            self._collectives += 1
        else:
            entry.collective_seq = max(self._collectives - 1, 0)
        if entry.is_p2p:
            entry.transfers = self._transfers_of(entry.op, args, self._rank())
            entry.p2p_seq = self._p2p
            self._p2p += 1
        else:
            entry.p2p_seq = max(self._p2p - 1, 0)
        if entry.op is OpName.split:
            entry.ranks = tuple(args.ranks)
            entry.split_number = self._splits.get(entry.ranks, 0)
            self._splits[entry.ranks] = entry.split_number + 1

    def withdraw(self, entry: Entry) -> None:
        """Returns the sequence numbers of a rejected call, so that all ranks keep counting alike.

        They stay if another thread has already got the next ones.
        """
        if entry.is_collective and self._collectives == entry.collective_seq + 1:
            self._collectives -= 1
            self._last_started = min(self._last_started, self._collectives - 1)
        for transfer in reversed(entry.transfers):
            if self._transfers[transfer.src, transfer.dst] == transfer.number + 1:
                self._transfers[transfer.src, transfer.dst] -= 1
        if entry.op is OpName.split and self._splits[entry.ranks] == entry.split_number + 1:
            self._splits[entry.ranks] -= 1

    def _rank(self) -> int:
        comm = self.comm()
        return -1 if comm is None else comm.get_rank()

    def _transfers_of(self, op: OpName, args: Any, rank: int) -> tuple[Transfer, ...]:
        if op is OpName.send:
            return (self._transfer(rank, args.peer, True, args.tensor),)
        if op is OpName.recv:
            return (self._transfer(args.peer, rank, False, args.tensor),)
        return tuple(
            self._transfer(rank, one.peer, True, one.tensor)
            if one.type.name == "SEND"
            else self._transfer(one.peer, rank, False, one.tensor)
            for one in args.ops
        )

    def _transfer(self, src: int, dst: int, is_send: bool, tensor: torch.Tensor) -> Transfer:
        number = self._transfers.get((src, dst), 0)
        self._transfers[src, dst] = number + 1
        return Transfer(
            src, dst, number, is_send, getattr(tensor, "shape", ()), getattr(tensor, "dtype", None)
        )

    def note_start(self, entry: Entry) -> None:
        if entry.is_collective:
            self._last_started = max(self._last_started, entry.collective_seq)

    def note_end(self, entry: Entry) -> None:
        if entry.is_collective:
            self._last_completed = max(self._last_completed, entry.collective_seq)

    def config(self) -> dict[str, str]:
        """Name and ranks, as they are dumped."""
        return {"name": self.name, "desc": self.backend, "ranks": listed(self._ranks)}

    def status(self) -> dict[str, int]:
        """Its progress, as it is dumped; −1 is none yet."""
        return {
            "last_enqueued_collective": self._collectives - 1,
            "last_started_collective": self._last_started,
            "last_completed_collective": self._last_completed,
        }


def _shapes_of(operand: Operand) -> tuple[Shapes, Dtypes]:
    if operand is None:
        return (), ()
    if not isinstance(operand, (list, tuple)) and hasattr(operand, "dtype"):
        return (operand.shape,), (operand.dtype,)
    every = tensors(operand)
    return tuple([tensor.shape for tensor in every]), tuple([tensor.dtype for tensor in every])


def listed(ranks: list[int]) -> str:
    """Ranks, as they are dumped."""
    return f"[{','.join(map(str, ranks))}]"


def _ranks_in_torch(name: str, size: int) -> list[int] | None:
    """The global ranks of the process group of torch.distributed with this name."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        world: Any = c10d._world  # type: ignore[union-attr]
        for group, group_name in list(world.pg_names.items()):
            if str(group_name) == name:
                members: dict[int, int] = world.pg_group_ranks[group]
                ranks = sorted(members, key=lambda rank: members[rank])
                return ranks if len(ranks) == size else None
    except (AttributeError, KeyError):  # torch is not imported, or another version
        return None
    return None
