"""What is tried with every number of ranks. Each chapter is named after its promise, and has a communicator of its own.

A chapter goes on when something is wrong, so that the ranks stay in step, and reports all of it.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torchcomms
from matrix_arguments import REFUSALS
from matrix_cases import MOVES, REDUCTIONS, ROOTED, Case, Maker, Spec
from matrix_oracle import MOVED, REDUCED, factor, reductions
from matrix_report import Chapter, Report, total
from torchcomms import ReduceOp, TorchComm, TorchWork, WorkStatus

CPU = torch.device("cpu")
TIMEOUT_S = 60.0
SMALL = [0, 1, 1021]
MILLION = 1_000_003


def new_comm(name: str) -> TorchComm:
    """A communicator of all ranks."""
    return torchcomms.new_comm("ringfold", CPU, name=name, timeout=TIMEOUT_S)


# --- every operation ---------------------------------------------------------------------------------------------


def move_specs(world: int) -> list[Spec]:
    """All moves: every type and size, with a root that goes round; for one type, every root."""
    wanted = itertools.product(MOVES, MOVED, SMALL)
    specs = [
        Spec(op, dtype, count, root=root_of(seed, world), seed=seed)
        for seed, (op, dtype, count) in enumerate(wanted)
    ]
    rooted = [op for op in ROOTED if op in MOVES]
    specs += [Spec(op, torch.float32, 5, root=root, seed=root) for op in rooted for root in range(world)]
    return specs


def reduce_specs(world: int, rank: int) -> list[Spec]:
    """All reductions of every type and size."""
    wanted = [
        (op, dtype, reduce, count)
        for op in REDUCTIONS
        for dtype in REDUCED
        for reduce in reductions(dtype, rank)
        for count in SMALL
    ]
    return [
        Spec(op, dtype, count, reduce, root=root_of(seed, world), seed=seed)
        for seed, (op, dtype, reduce, count) in enumerate(wanted)
    ]


def root_of(seed: int, world: int) -> int:
    """A root that goes round, and not with the sizes."""
    return (seed + seed // len(SMALL)) % world


def large_specs(world: int, rank: int) -> list[Spec]:
    """A million elements: more than fits into any buffer on the way."""
    share = MILLION // world
    specs = [
        Spec("send_recv", torch.uint8, MILLION),
        Spec("broadcast", torch.float32, MILLION, root=world - 1),
        Spec("all_gather_single", torch.int16, share),
        Spec("all_gather_v", torch.float32, share),
        Spec("all_to_all_single", torch.float32, share),
        Spec("all_to_all_v_single", torch.uint8, share),
        Spec("scatter", torch.bfloat16, share, root=world - 1),
        Spec("gather", torch.int64, share, root=world - 1),
        Spec("batch", torch.float32, share),
        Spec("reduce", torch.float32, MILLION, ReduceOp.SUM, root=world - 1),
        Spec("reduce_scatter_single", torch.float16, share, ReduceOp.SUM),
        Spec("reduce_scatter_v", torch.float32, share, ReduceOp.SUM),
    ]
    specs += [Spec("all_reduce", dtype, MILLION, ReduceOp.SUM) for dtype in (torch.bfloat16, torch.int64)]
    premultiplied = ReduceOp.PREMUL_SUM(factor(rank))
    floats = [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, premultiplied]
    return specs + [Spec("all_reduce", torch.float32, MILLION, op) for op in floats]


def run_blocking(comm: TorchComm, specs: list[Spec], report: Report) -> None:
    """One after the other; each is done when the call returns."""
    maker = Maker(comm.get_rank(), comm.get_size())
    digests = Digests()
    for spec in specs:
        case = maker.case(spec)
        works = case.issue(comm, False)
        late = [work for work in works if not work.is_completed() or work.status is not WorkStatus.COMPLETED]
        report.add([f"{spec}: a blocking call has returned {late}"] if late else [])
        report.add(case.problems())
        digests.note(case)
    digests.compare(comm, report)


def run_in_flight(comm: TorchComm, specs: list[Spec], report: Report, at_once: int = 64) -> None:
    """Many at once."""
    maker = Maker(comm.get_rank(), comm.get_size())
    digests = Digests()
    for begin in range(0, len(specs), at_once):
        cases = [maker.case(spec) for spec in specs[begin : begin + at_once]]
        issued = [(case, case.issue(comm, True)) for case in cases]
        for case, works in issued:
            for work in works:
                work.wait()
                work.wait()
                is_done = work.is_completed() and work.status is WorkStatus.COMPLETED
                report.expect(is_done, f"{case.spec}: after wait() it is {work}")
            report.add(f"async {problem}" for problem in case.problems())
            digests.note(case)
    digests.compare(comm, report)


class Digests:
    """Results that have to have the same bits on all ranks."""

    def __init__(self) -> None:
        self._specs: list[Spec] = []
        self._numbers: list[int] = []

    def note(self, case: Case) -> None:
        """Remembers a result's bits."""
        if case.shared is None:
            return
        text = case.shared.reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        self._specs.append(case.spec)
        self._numbers.append(int.from_bytes(digest, "little", signed=True))

    def compare(self, comm: TorchComm, report: Report) -> None:
        """Whether all ranks have seen the same."""
        mine = torch.tensor(self._numbers, dtype=torch.int64)
        all_of = [torch.empty_like(mine) for _ in range(comm.get_size())]
        comm.all_gather(all_of, mine, False)
        for rank, theirs in enumerate(all_of):
            for place in (theirs != mine).nonzero().flatten().tolist():
                report.add([f"{self._specs[place]}: other bits than on rank {rank}"])


def every_move_of_every_type_brings_the_very_bytes(comm: TorchComm, report: Report) -> None:
    run_blocking(comm, move_specs(comm.get_size()), report)


def every_move_of_every_type_brings_the_very_bytes_in_flight(comm: TorchComm, report: Report) -> None:
    run_in_flight(comm, move_specs(comm.get_size()), report)


def every_reduction_is_right_and_has_the_same_bits_everywhere(comm: TorchComm, report: Report) -> None:
    run_blocking(comm, reduce_specs(comm.get_size(), comm.get_rank()), report)


def every_reduction_is_right_and_has_the_same_bits_everywhere_in_flight(
    comm: TorchComm, report: Report
) -> None:
    run_in_flight(comm, reduce_specs(comm.get_size(), comm.get_rank()), report)


def a_million_elements_arrive_blocking_and_in_flight(comm: TorchComm, report: Report) -> None:
    specs = large_specs(comm.get_size(), comm.get_rank())
    run_blocking(comm, specs, report)
    run_in_flight(comm, specs, report, at_once=6)


def shapes_and_aliases_do_not_matter(comm: TorchComm, report: Report) -> None:
    """Tensors of no dimension and of three, tensors that require gradients, inputs that lie within outputs."""
    rank, world = comm.get_rank(), comm.get_size()
    number = torch.tensor(float(rank))
    comm.all_reduce(number, ReduceOp.SUM, False)
    report.expect(number.item() == sum(range(world)), f"a tensor without dimensions became {number}")
    parameter = torch.full((3,), float(rank), requires_grad=True)
    comm.broadcast(parameter, world - 1, False)
    report.expect(parameter.tolist() == [world - 1.0] * 3, f"a parameter became {parameter}")
    cube = torch.full((world * 2, 3, 5), -1.0)
    comm.all_gather_single(cube, torch.full((2, 15), float(rank)), False)
    wanted = torch.arange(world).repeat_interleave(30).view_as(cube)
    report.expect(torch.equal(cube, wanted.float()), "parts of a cube are not where they should be")
    for async_op in (False, True):
        for name, wrong in (
            ("all_gather_single from its own output", _gathered_within(comm, async_op)),
            ("all_gather from its own output", _listed_within(comm, async_op)),
            ("all_gather into one tensor only", _all_in_one(comm, async_op)),
            ("reduce_scatter_single into its own input", _scattered_within(comm, async_op)),
            ("scatter into its own input", _dealt_within(comm, async_op)),
            ("all_to_all_single into its own input", _exchanged_within(comm, async_op)),
        ):
            report.expect(wrong is None, f"{name} (async {async_op}): {wrong}")


COUNT = 30_001


def _gathered_within(comm: TorchComm, async_op: bool) -> str | None:
    whole = torch.full((comm.get_size(), COUNT), -1.0)
    whole[comm.get_rank()] = comm.get_rank()
    comm.all_gather_single(whole, whole[comm.get_rank()], async_op).wait()
    return _rows(whole)


def _listed_within(comm: TorchComm, async_op: bool) -> str | None:
    whole = torch.full((comm.get_size(), COUNT), -1.0)
    whole[comm.get_rank()] = comm.get_rank()
    comm.all_gather(list(whole), whole[comm.get_rank()], async_op).wait()
    return _rows(whole)


def _all_in_one(comm: TorchComm, async_op: bool) -> str | None:
    one, mine = torch.full((COUNT,), -1.0), torch.full((COUNT,), float(comm.get_rank()))
    comm.all_gather([one] * comm.get_size(), mine, async_op).wait()
    is_anyones = 0 <= one[0] < comm.get_size() and bool((one == one[0]).all())
    return None if is_anyones and bool((mine == comm.get_rank()).all()) else f"it holds {one.unique()}"


def _scattered_within(comm: TorchComm, async_op: bool) -> str | None:
    rank, world = comm.get_rank(), comm.get_size()
    whole = torch.arange(world).float().repeat_interleave(COUNT).view(world, COUNT) + rank
    comm.reduce_scatter_single(whole[rank], whole, ReduceOp.SUM, async_op).wait()
    wanted = rank * world + sum(range(world))
    return None if bool((whole[rank] == wanted).all()) else f"{whole[rank].unique()}, not {wanted}"


def _dealt_within(comm: TorchComm, async_op: bool) -> str | None:
    rank, world = comm.get_rank(), comm.get_size()
    parts = [torch.full((COUNT,), float(to)) for to in range(world)] if rank == 0 else []
    output = parts[0] if rank == 0 else torch.full((COUNT,), -1.0)
    comm.scatter(output, parts, 0, async_op).wait()
    return None if bool((output == rank).all()) else f"{output.unique()}, not {rank}"


def _exchanged_within(comm: TorchComm, async_op: bool) -> str | None:
    rank, world = comm.get_rank(), comm.get_size()
    whole = (torch.arange(world) + world * rank).float().repeat_interleave(COUNT).view(world, COUNT)
    comm.all_to_all_single(whole, whole, async_op).wait()
    wanted = torch.arange(world) * world + rank
    return None if torch.equal(whole[:, 0], wanted.float()) else f"{whole[:, 0]}, not {wanted}"


def _rows(whole: torch.Tensor) -> str | None:
    wanted = torch.arange(len(whole)).float().view(-1, 1)
    return None if bool((whole == wanted).all()) else f"rows hold {[row.unique() for row in whole]}"


# --- works -------------------------------------------------------------------------------------------------------


def fifty_operations_of_all_kinds_are_in_flight_at_once(comm: TorchComm, report: Report) -> None:
    """Collectives and transfers mixed, each rank's transfers begun at other places between its collectives."""
    rank, world = comm.get_rank(), comm.get_size()
    maker = Maker(rank, world)
    collectives = [
        Spec(op, torch.float32, 501 + i, ReduceOp.SUM if op in REDUCTIONS else None, root=i % world, seed=i)
        for i, op in enumerate(
            (REDUCTIONS + [move for move in MOVES if move not in ("send_recv", "batch")]) * 3
        )
    ]
    transfers = [Spec(op, torch.int16, 301 + i, seed=i) for i in range(10) for op in ("send_recv", "batch")]
    pending: list[tuple[Case, list[TorchWork]]] = []
    left = list(transfers)
    for place, spec in enumerate(collectives):
        if (place + rank) % 3 == 0 and left:
            case = maker.case(left.pop(0))
            pending.append((case, case.issue(comm, True)))
        case = maker.case(spec)
        pending.append((case, case.issue(comm, True)))
    for spec in left:
        case = maker.case(spec)
        pending.append((case, case.issue(comm, True)))
    report.expect(len(pending) >= 50, f"only {len(pending)} were in flight")
    for case, works in reversed(pending):
        for work in works:
            work.wait()
        report.add(case.problems())


def a_work_is_in_progress_until_the_others_call(comm: TorchComm, report: Report) -> None:
    rank, world = comm.get_rank(), comm.get_size()
    word = torch.zeros(1)
    if rank == 0:
        work = comm.barrier(True)
        report.expect(not work.is_completed(), "a barrier of one rank alone is complete")
        report.expect(work.status is WorkStatus.INPROGRESS, f"and it is {work.status}")
        for other in range(1, world):
            comm.send(word, other, False)
    else:
        comm.recv(word, 0, False)
        work = comm.barrier(True)
    deadline = time.monotonic() + 30
    while not work.is_completed() and time.monotonic() < deadline:
        time.sleep(0.001)
    report.expect(work.status is WorkStatus.COMPLETED, f"a barrier without a wait ends as {work.status}")
    for _ in range(2):
        work.wait()
        work.wait_blocking()


def works_and_tensors_may_be_dropped_before_the_end(comm: TorchComm, report: Report) -> None:
    rank, world = comm.get_rank(), comm.get_size()
    right, left = (rank + 1) % world, (rank - 1) % world
    for round in range(5):
        # Nothing of this is kept; if memory went with it, what is allocated next would lie there.
        comm.all_reduce(torch.full((50_000,), float(rank)), ReduceOp.SUM, True)
        comm.all_gather_single(torch.empty(world * 9_999), torch.full((9_999,), float(rank)), True)
        comm.send(torch.full((70_001,), float(round)), right, True)
        received = torch.empty(70_001)
        work = comm.recv(received, left, True)
        kept = torch.full((30_000,), float(rank + round))
        comm.all_reduce(kept, ReduceOp.MAX, True)
        noise = [torch.full((50_000,), -1.0) for _ in range(4)]
        work.wait()
        report.expect(
            bool((received == round).all()), f"round {round}: what was sent and dropped arrived torn"
        )
        comm.barrier(False)
        report.expect(
            bool((kept == world - 1 + round).all()), f"round {round}: a dropped work has not done its part"
        )
        report.expect(
            all(bool((each == -1).all()) for each in noise), f"round {round}: memory was written later"
        )


# --- communicators -----------------------------------------------------------------------------------------------


def members(comm: TorchComm, me: int) -> list[int]:
    """Who is in it, by the numbers given."""
    mine = torch.tensor([me])
    all_of = [torch.zeros(1, dtype=torch.int64) for _ in range(comm.get_size())]
    comm.all_gather(all_of, mine, False)
    return [int(each) for each in torch.cat(all_of)]


def splits_are_communicators_of_their_own_nested_and_at_once(comm: TorchComm, report: Report) -> None:
    rank, world = comm.get_rank(), comm.get_size()
    ranks = list(range(world))
    report.expect(comm.split([], name="nobody") is None, "split([]) gives something")
    # Everyone, the other way round.
    turned = comm.split(ranks[::-1], name="turned")
    assert turned is not None
    report.expect(turned.get_rank() == world - 1 - rank, f"the turned rank is {turned.get_rank()}")
    report.expect(members(turned, rank) == ranks[::-1], "the turned ranks are not in the order given")
    # Two halves at once, without a name.
    halves = [ranks[: world // 2], ranks[world // 2 :]]
    mine = halves[0] if rank in halves[0] else halves[1]
    half = comm.split(mine)
    assert half is not None
    report.expect(half.get_size() == len(mine) and half.get_rank() == mine.index(rank), f"{half} of {mine}")
    report.expect(members(half, rank) == mine, f"the half {mine} holds {members(half, rank)}")
    # One within the half, while the other half does the same; then everyone alone.
    nested = half.split(list(range(half.get_size())), name="nested")
    assert nested is not None
    report.expect(members(nested, rank) == mine, "a nested split holds others")
    alone = nested.split([nested.get_rank()], name="alone")
    assert alone is not None
    report.expect(members(alone, rank) == [rank], "a rank alone is not alone")
    names = [each.get_name() for each in (comm, turned, half, nested, alone)]
    report.expect(len(set(names)) == len(names), f"names repeat: {names}")
    # Only some call at all, and the same members twice.
    if rank < 2:
        pair = comm.split([1, 0], name="pair")
        again = comm.split([1, 0], name="pair")
        assert pair is not None and again is not None
        report.expect(
            members(pair, rank) == [1, 0] and members(again, rank) == [1, 0], "the pair holds others"
        )
        pair.finalize()
        report.expect(total(again) == 2, "a split ends with its twin")
        again.finalize()
    # All at once, each with work in flight, and the parents still serve.
    tensors = [torch.full((1001,), float(rank + 1)) for _ in range(4)]
    comms = [comm, turned, half, nested]
    works = [each.all_reduce(tensor, ReduceOp.SUM, True) for each, tensor in zip(comms, tensors)]
    for each, tensor, work in zip(comms, tensors, works):
        work.wait()
        wanted = sum(r + 1 for r in (mine if each in (half, nested) else ranks))
        report.expect(bool((tensor == wanted).all()), f"{each.get_name()}: {tensor[0]} instead of {wanted}")
    # A child outlives its parent.
    half.finalize()
    report.expect(total(nested) == len(mine), "a nested split does not outlive its parent")
    for each in (turned, nested, alone):
        each.finalize()
    report.expect(total(comm) == world, "the first communicator does not outlive its splits")


def twenty_communicators_work_side_by_side(comm: TorchComm, report: Report) -> None:
    rank, world = comm.get_rank(), comm.get_size()
    # Half of them share one name, the others have none at all.
    comms = [new_comm("one of many") for _ in range(10)]
    comms += [torchcomms.new_comm("ringfold", CPU) for _ in range(10)]
    for _ in range(3):
        tensors = [torch.full((257,), float(rank + i)) for i in range(len(comms))]
        works = [each.all_reduce(tensor, ReduceOp.SUM, True) for each, tensor in zip(comms, tensors)]
        for i, work in reversed([*enumerate(works)]):
            work.wait()
            wanted = sum(r + i for r in range(world))
            report.expect(
                bool((tensors[i] == wanted).all()), f"communicator {i}: {tensors[i][0]}, not {wanted}"
            )
    for each in comms[::2]:
        each.finalize()
    for i, each in enumerate(comms[1::2]):
        report.expect(total(each) == world, f"communicator {2 * i + 1} has suffered from the others' end")
        each.finalize()


def threads_use_communicators_of_their_own_at_once(comm: TorchComm, report: Report) -> None:
    rank, world = comm.get_rank(), comm.get_size()
    comms = [comm, *(new_comm(f"thread {i}") for i in range(3))]
    reports = [Report(rank) for _ in comms]

    def work(number: int) -> None:
        mine, mine_to = comms[number], reports[number]
        specs = [
            Spec("all_reduce", torch.float32, 1021 + i, ReduceOp.SUM, seed=i + number) for i in range(40)
        ]
        specs += [Spec("all_to_all", torch.int32, 101, seed=i + number) for i in range(20)]
        specs += [Spec("send_recv", torch.float64, 20_001, seed=i + number) for i in range(20)]
        (run_blocking if number % 2 else run_in_flight)(mine, specs, mine_to)

    with ThreadPoolExecutor(len(comms)) as threads:
        for future in [threads.submit(work, number) for number in range(len(comms))]:
            future.result(TIMEOUT_S)
    for each in reports:
        report.add(each.problems)
        report.checks += each.checks
    for each in comms[1:]:
        each.finalize()
    report.expect(total(comm) == world, "the communicator of the first thread is lost")


def threads_may_share_one_communicator_for_transfers(comm: TorchComm, report: Report) -> None:
    """Each rank receives on one thread and sends on another, blocking."""
    rank, world = comm.get_rank(), comm.get_size()
    right, left = (rank + 1) % world, (rank - 1) % world
    received = [torch.empty(40_001) for _ in range(20)]

    def send() -> None:
        for i in range(20):
            comm.send(torch.full((40_001,), float(rank + i)), right, False)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    for tensor in received:
        comm.recv(tensor, left, False)
    sender.join(TIMEOUT_S)
    report.expect(not sender.is_alive(), "the sending thread hangs")
    for i, tensor in enumerate(received):
        report.expect(bool((tensor == left + i).all()), f"transfer {i} brought {tensor[0]}, not {left + i}")


CHAPTERS: list[Chapter] = [
    every_move_of_every_type_brings_the_very_bytes,
    every_move_of_every_type_brings_the_very_bytes_in_flight,
    every_reduction_is_right_and_has_the_same_bits_everywhere,
    every_reduction_is_right_and_has_the_same_bits_everywhere_in_flight,
    a_million_elements_arrive_blocking_and_in_flight,
    shapes_and_aliases_do_not_matter,
    fifty_operations_of_all_kinds_are_in_flight_at_once,
    a_work_is_in_progress_until_the_others_call,
    works_and_tensors_may_be_dropped_before_the_end,
    splits_are_communicators_of_their_own_nested_and_at_once,
    twenty_communicators_work_side_by_side,
    threads_use_communicators_of_their_own_at_once,
    threads_may_share_one_communicator_for_transfers,
    *REFUSALS,
]
