"""One call of one operation: what goes in, how it is called, and what has to be there afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from matrix_oracle import bytes_of, difference, moved, name_of, values
from torchcomms import ReduceOp, TorchComm, TorchWork

Call = Callable[[TorchComm, bool], TorchWork | list[TorchWork]]
GUARD = 3
ROOTED = ("broadcast", "reduce", "scatter", "gather", "gather_single")
FILL = 0x01  # A byte that is a value of every type.


@dataclass(frozen=True)
class Spec:
    """What is to be tried."""

    op: str
    dtype: torch.dtype
    count: int
    """Elements of one rank's part."""
    reduce: ReduceOp | None = None
    root: int = 0
    seed: int = 0

    def __str__(self) -> str:
        words = [self.op, str(self.dtype).removeprefix("torch."), name_of(self.reduce), f"of {self.count}"]
        is_rooted = self.op in ROOTED
        return " ".join([*filter(None, words), *([f"root {self.root}"] if is_rooted else [])])


class GuardedBuffer:
    """Memory for a result, between guard bytes that must not change. Its address is not aligned."""

    def __init__(self, dtype: torch.dtype, count: int, start: torch.Tensor | None = None) -> None:
        guard = GUARD * dtype.itemsize
        size = count * dtype.itemsize
        self._bytes = torch.full((guard + size + guard,), FILL, dtype=torch.uint8)
        self._end = guard + size
        self._begin = guard
        # A view of one type as another starts at a multiple of its size, which the guards are.
        self.tensor = self._bytes[guard : guard + size].view(dtype)
        if start is not None:
            self.tensor.copy_(start)

    @property
    def is_untouched(self) -> bool:
        """Whether the guards are what they were."""
        guards = [self._bytes[: self._begin], self._bytes[self._end :]]
        return all(bool((guard == FILL).all()) for guard in guards)


@dataclass
class Case:
    """A call that can be made once."""

    spec: Spec
    call: Call
    inputs: list[torch.Tensor] = field(default_factory=list)
    rooms: list[GuardedBuffer] = field(default_factory=list)
    verify: list[Callable[[], str | None]] = field(default_factory=list)
    shared: torch.Tensor | None = None
    """A result that has to have the same bits on all ranks."""

    def __post_init__(self) -> None:
        self._before = [bytes_of(each).clone() for each in self.inputs]

    def issue(self, comm: TorchComm, async_op: bool) -> list[TorchWork]:
        """Makes the call, which may be more than one."""
        works = self.call(comm, async_op)
        return works if isinstance(works, list) else [works]

    def problems(self) -> list[str]:
        """What is wrong after the call."""
        found = [problem for check in self.verify if (problem := check()) is not None]
        for number, (now, before) in enumerate(zip(self.inputs, self._before)):
            if not torch.equal(bytes_of(now), before):
                found.append(f"input {number} was overwritten")
        if not all(room.is_untouched for room in self.rooms):
            found.append("memory beside a result was overwritten")
        return [f"{self.spec}: {problem}" for problem in found]


class Maker:
    """Makes cases for one rank of a world."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world

    def case(self, spec: Spec) -> Case:
        """The call that this describes."""
        make = getattr(self, spec.op)
        made = make(spec)
        assert isinstance(made, Case)
        return made

    # --- what the ranks have -----------------------------------------------------------------------------------------

    def _of(self, spec: Spec, rank: int, count: int | None = None, salt: int = 0) -> torch.Tensor:
        many = spec.count if count is None else count
        return values(spec.dtype, many, rank, spec.seed * 8 + salt, spec.reduce)

    def _all(self, spec: Spec, count: int | None = None) -> list[torch.Tensor]:
        return [self._of(spec, rank, count) for rank in range(self.world)]

    def uneven(self, count: int, rank: int) -> int:
        """How many elements are this rank's where ranks differ."""
        return count + 2 * rank if rank % 2 == 0 else count // 2

    # --- moves -------------------------------------------------------------------------------------------------------

    def send_recv(self, spec: Spec) -> Case:
        """Everyone sends to the next rank. Rank 0 sends first, all others receive first, so that it works blocking."""
        mine, room = self._of(spec, self.rank), GuardedBuffer(spec.dtype, spec.count)
        to, source = (self.rank + 1) % self.world, (self.rank - 1) % self.world

        def call(comm: TorchComm, async_op: bool) -> list[TorchWork]:
            if self.rank == 0:
                first = comm.send(mine, to, async_op)
                second = comm.recv(room.tensor, source, async_op)
            else:
                second = comm.recv(room.tensor, source, async_op)
                first = comm.send(mine, to, async_op)
            return [first, second]

        return Case(spec, call, [mine], [room], [lambda: moved(room.tensor, self._of(spec, source))])

    def broadcast(self, spec: Spec) -> Case:
        room = GuardedBuffer(spec.dtype, spec.count, self._of(spec, self.rank))
        return Case(
            spec,
            lambda comm, a: comm.broadcast(room.tensor, spec.root, a),
            [],
            [room],
            [lambda: moved(room.tensor, self._of(spec, spec.root))],
            room.tensor,
        )

    def all_gather(self, spec: Spec) -> Case:
        mine, rooms = (
            self._of(spec, self.rank),
            [GuardedBuffer(spec.dtype, spec.count) for _ in range(self.world)],
        )
        outputs = [room.tensor for room in rooms]
        verify = [lambda: moved(torch.cat(outputs), torch.cat(self._all(spec)))]
        return Case(spec, lambda comm, a: comm.all_gather(outputs, mine, a), [mine], rooms, verify)

    def all_gather_v(self, spec: Spec) -> Case:
        counts = [self.uneven(spec.count, rank) for rank in range(self.world)]
        mine = self._of(spec, self.rank, counts[self.rank])
        rooms = [GuardedBuffer(spec.dtype, count) for count in counts]
        outputs = [room.tensor for room in rooms]
        wanted = torch.cat([self._of(spec, rank, count) for rank, count in enumerate(counts)])
        verify = [lambda: moved(torch.cat(outputs), wanted)]
        return Case(spec, lambda comm, a: comm.all_gather_v(outputs, mine, a), [mine], rooms, verify)

    def all_gather_single(self, spec: Spec) -> Case:
        mine, room = self._of(spec, self.rank), GuardedBuffer(spec.dtype, spec.count * self.world)
        verify = [lambda: moved(room.tensor, torch.cat(self._all(spec)))]
        return Case(
            spec, lambda comm, a: comm.all_gather_single(room.tensor, mine, a), [mine], [room], verify
        )

    def all_gather_p(self, spec: Spec) -> Case:
        """Prepared, run twice, and freed."""
        mine, room = self._of(spec, self.rank), GuardedBuffer(spec.dtype, spec.count * self.world)

        def call(comm: TorchComm, async_op: bool) -> list[TorchWork]:
            handle = comm.all_gather_p_init(room.tensor)
            first = comm.all_gather_p_exec(handle, mine, async_op)
            second = comm.all_gather_p_exec(handle, mine, async_op)
            comm.all_gather_p_free(handle)
            return [first, second]

        return Case(
            spec, call, [mine], [room], [lambda: moved(room.tensor, torch.cat(self._all(spec)))], room.tensor
        )

    def all_to_all_single(self, spec: Spec) -> Case:
        mine = self._of(spec, self.rank, spec.count * self.world)
        room = GuardedBuffer(spec.dtype, spec.count * self.world)
        theirs = self._all(spec, spec.count * self.world)
        begin = self.rank * spec.count
        wanted = torch.cat([each[begin : begin + spec.count] for each in theirs])
        return Case(
            spec,
            lambda comm, a: comm.all_to_all_single(room.tensor, mine, a),
            [mine],
            [room],
            [lambda: moved(room.tensor, wanted)],
        )

    def all_to_all_v_single(self, spec: Spec) -> Case:
        """Rows of three elements; some are left over on both sides, and those of the output are not touched."""
        width, slack = 3, 2

        def rows(source: int, target: int) -> int:
            return 0 if spec.count == 0 else spec.count // width + (source + 2 * target + spec.seed) % 4

        def sent_by(rank: int) -> list[int]:
            return [rows(rank, target) for target in range(self.world)]

        def input_of(rank: int) -> torch.Tensor:
            return self._of(spec, rank, (sum(sent_by(rank)) + slack) * width).view(-1, width)

        sent, received = sent_by(self.rank), [rows(source, self.rank) for source in range(self.world)]
        mine, room = input_of(self.rank), GuardedBuffer(spec.dtype, (sum(received) + slack) * width)
        rest = room.tensor[sum(received) * width :].clone()
        parts = [input_of(source).split([*sent_by(source), slack])[self.rank] for source in range(self.world)]
        wanted = torch.cat([torch.cat(parts).reshape(-1), rest])
        output = room.tensor.view(-1, width)
        return Case(
            spec,
            lambda comm, a: comm.all_to_all_v_single(output, mine, received, sent, a),
            [mine],
            [room],
            [lambda: moved(room.tensor, wanted)],
        )

    def all_to_all(self, spec: Spec) -> Case:
        """A list of tensors whose sizes differ from pair to pair."""

        def count(source: int, target: int) -> int:
            return self.uneven(spec.count, (source + target) % self.world)

        ranks = range(self.world)
        inputs = [self._of(spec, self.rank, count(self.rank, to), salt=1 + to % 7) for to in ranks]
        rooms = [GuardedBuffer(spec.dtype, count(source, self.rank)) for source in ranks]
        outputs = [room.tensor for room in rooms]
        wanted = [
            self._of(spec, source, count(source, self.rank), salt=1 + self.rank % 7) for source in ranks
        ]
        return Case(
            spec,
            lambda comm, a: comm.all_to_all(outputs, inputs, a),
            inputs,
            rooms,
            [lambda: moved(torch.cat(outputs), torch.cat(wanted))],
        )

    def barrier(self, spec: Spec) -> Case:
        return Case(spec, lambda comm, a: comm.barrier(a))

    def scatter(self, spec: Spec) -> Case:
        is_root = self.rank == spec.root
        parts = [self._of(spec, spec.root, salt=1 + to % 7) for to in range(self.world)]
        # What others pass is not looked at.
        inputs = parts if is_root else [[], parts[:1], [torch.zeros(99)[::2]]][spec.seed % 3]
        wanted, room = parts[self.rank].clone(), GuardedBuffer(spec.dtype, spec.count)
        return Case(
            spec,
            lambda comm, a: comm.scatter(room.tensor, inputs, spec.root, a),
            parts if is_root else [],
            [room],
            [lambda: moved(room.tensor, wanted)],
        )

    def gather(self, spec: Spec) -> Case:
        is_root = self.rank == spec.root
        mine = self._of(spec, self.rank)
        rooms = [GuardedBuffer(spec.dtype, spec.count) for _ in range(self.world)] if is_root else []
        outputs = [room.tensor for room in rooms]
        if not is_root:
            outputs = [[], [torch.zeros(1)], [torch.zeros(99)[::2]] * 9][spec.seed % 3]
        verify = [lambda: moved(torch.cat(outputs), torch.cat(self._all(spec)))] if is_root else []
        return Case(spec, lambda comm, a: comm.gather(outputs, mine, spec.root, a), [mine], rooms, verify)

    def gather_single(self, spec: Spec) -> Case:
        is_root = self.rank == spec.root
        mine, room = self._of(spec, self.rank), GuardedBuffer(spec.dtype, spec.count * self.world)
        before = room.tensor.clone()
        wanted = torch.cat(self._all(spec)) if is_root else before
        return Case(
            spec,
            lambda comm, a: comm.gather_single(room.tensor, mine, spec.root, a),
            [mine],
            [room],
            [lambda: moved(room.tensor, wanted)],
        )

    def batch(self, spec: Spec) -> Case:
        """Two transfers with every other rank, of different sizes, which meet in their order."""
        others = [rank for rank in range(self.world) if rank != self.rank]
        sizes = [spec.count, self.uneven(spec.count, 2)]
        sent = {(to, i): self._of(spec, self.rank, sizes[i], salt=1 + i) for to in others for i in (0, 1)}
        rooms = {(source, i): GuardedBuffer(spec.dtype, sizes[i]) for source in others for i in (0, 1)}

        def call(comm: TorchComm, async_op: bool) -> TorchWork:
            batch = comm.batch_op_create()
            for (to, _), tensor in sent.items():
                batch.send(tensor, to)
            for (source, _), room in rooms.items():
                batch.recv(room.tensor, source)
            assert len(batch.ops) == len(sent) + len(rooms)
            return batch.issue(async_op)

        verify = [
            lambda room=room, source=source, i=i: moved(
                room.tensor, self._of(spec, source, sizes[i], salt=1 + i)
            )
            for (source, i), room in rooms.items()
        ]
        return Case(spec, call, [*sent.values()], [*rooms.values()], verify)

    # --- reductions --------------------------------------------------------------------------------------------------

    def all_reduce(self, spec: Spec) -> Case:
        op = _reduction(spec)
        room = GuardedBuffer(spec.dtype, spec.count, self._of(spec, self.rank))
        return Case(
            spec,
            lambda comm, a: comm.all_reduce(room.tensor, op, a),
            [],
            [room],
            [lambda: difference(room.tensor, self._all(spec), op)],
            room.tensor,
        )

    def reduce(self, spec: Spec) -> Case:
        op = _reduction(spec)
        room = GuardedBuffer(spec.dtype, spec.count, self._of(spec, self.rank))
        if self.rank == spec.root:
            verify = [lambda: difference(room.tensor, self._all(spec), op)]
        else:
            verify = [lambda: moved(room.tensor, self._of(spec, self.rank))]
        return Case(spec, lambda comm, a: comm.reduce(room.tensor, spec.root, op, a), [], [room], verify)

    def reduce_scatter(self, spec: Spec) -> Case:
        return self._scattered(spec, [spec.count] * self.world, "reduce_scatter")

    def reduce_scatter_v(self, spec: Spec) -> Case:
        return self._scattered(
            spec, [self.uneven(spec.count, rank) for rank in range(self.world)], "reduce_scatter_v"
        )

    def _scattered(self, spec: Spec, counts: list[int], name: str) -> Case:
        op = _reduction(spec)
        theirs = [list(self._of(spec, rank, sum(counts)).split(counts)) for rank in range(self.world)]
        inputs = [part.clone() for part in theirs[self.rank]]
        room = GuardedBuffer(spec.dtype, counts[self.rank])
        parts = [each[self.rank] for each in theirs]
        return Case(
            spec,
            lambda comm, a: getattr(comm, name)(room.tensor, inputs, op, a),
            inputs,
            [room],
            [lambda: difference(room.tensor, parts, op)],
        )

    def reduce_scatter_single(self, spec: Spec) -> Case:
        op = _reduction(spec)
        theirs = self._all(spec, spec.count * self.world)
        mine, room = theirs[self.rank].clone(), GuardedBuffer(spec.dtype, spec.count)
        begin = self.rank * spec.count
        parts = [each[begin : begin + spec.count] for each in theirs]
        return Case(
            spec,
            lambda comm, a: comm.reduce_scatter_single(room.tensor, mine, op, a),
            [mine],
            [room],
            [lambda: difference(room.tensor, parts, op)],
        )


MOVES = [
    "send_recv",
    "broadcast",
    "all_gather",
    "all_gather_v",
    "all_gather_single",
    "all_gather_p",
    "all_to_all_single",
    "all_to_all_v_single",
    "all_to_all",
    "scatter",
    "gather",
    "gather_single",
    "batch",
]
REDUCTIONS = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v", "reduce_scatter_single"]


def _reduction(spec: Spec) -> ReduceOp:
    assert spec.reduce is not None
    return spec.reduce
