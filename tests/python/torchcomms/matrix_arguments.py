"""Chapters about calls that are rejected: at once, on this rank alone, with a message that says why; afterwards the
communicator serves as before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from matrix_oracle import COMPLEX, FLOATS, FLOATS_OF_8_BITS, name_of
from matrix_report import Chapter, Report, total
from torchcomms import ReduceOp, TorchComm

Calls = list[tuple[str, Callable[..., object], tuple[object, ...]]]
SUM = ReduceOp.SUM


def ranks_out_of_range_are_refused_with_the_range_and_the_value(comm: TorchComm, report: Report) -> None:
    rank, world = comm.get_rank(), comm.get_size()
    one, listed = torch.ones(4), [torch.ones(4) for _ in range(world)]
    for peer in (-1, -7, world, world + 5, 1 << 40):
        calls: Calls = [
            ("send", comm.send, (one, peer, False)),
            ("recv", comm.recv, (one, peer, False)),
            ("broadcast", comm.broadcast, (one, peer, False)),
            ("reduce", comm.reduce, (one, peer, SUM, False)),
            ("scatter", comm.scatter, (one, listed, peer, False)),
            ("gather", comm.gather, (listed, one, peer, False)),
            ("gather_single", comm.gather_single, (torch.ones(4 * world), one, peer, False)),
            ("batch send", batch, (comm, "send", one, peer)),
            ("batch recv", batch, (comm, "recv", one, peer)),
        ]
        words = [rf"(?<!\d){peer}(?!\d)", rf"(?<!\d)0\b.*\b({world}|{world - 1})(?!\d)"]
        for name, function, arguments in calls:
            report.refuses(f"{name} with rank {peer}", words, function, *arguments)
    report.refuses("send to self", ["self|own"], comm.send, one, rank, False)
    report.refuses("recv from self", ["self|own"], comm.recv, one, rank, False)
    for ranks, word in (([*range(world), world], str(world)), ([-1, rank], "-1"), ([rank, rank], str(rank))):
        report.refuses(f"split({ranks})", [rf"(?<!\d){word}(?!\d)"], comm.split, ranks, name="never")
    others = [other for other in range(world) if other != rank]
    report.refuses(f"split({others}) of others", [rf"\b{rank}\b"], comm.split, others, name="never")
    report.expect(total(comm) == world, "the communicator does not serve after refusals")


def batch(comm: TorchComm, kind: str, tensor: torch.Tensor, peer: int) -> object:
    """A batch of one transfer."""
    made = comm.batch_op_create()
    getattr(made, kind)(tensor, peer)
    return made.issue(False)


def tensors_with_gaps_are_refused(comm: TorchComm, report: Report) -> None:
    world, rank = comm.get_size(), comm.get_rank()
    peer, root = (rank + 1) % world, rank  # Only a root's lists are checked, so each rank is one.
    good, wide = torch.ones(6), torch.ones(6 * world)
    gaps, wide_gaps = torch.ones(12)[::2], torch.ones(12 * world)[::2]
    goods, gapped, ones = [good] * world, [*[good] * (world - 1), gaps], [1] * world
    calls: Calls = [
        ("send", comm.send, (gaps, peer, False)),
        ("recv", comm.recv, (gaps, peer, False)),
        ("broadcast", comm.broadcast, (gaps, root, False)),
        ("all_reduce", comm.all_reduce, (gaps, SUM, False)),
        ("reduce", comm.reduce, (gaps, root, SUM, False)),
        ("all_gather of", comm.all_gather, (goods, gaps, False)),
        ("all_gather into", comm.all_gather, (gapped, good, False)),
        ("all_gather_v of", comm.all_gather_v, (goods, gaps, False)),
        ("all_gather_v into", comm.all_gather_v, (gapped, good, False)),
        ("all_gather_single of", comm.all_gather_single, (wide, gaps, False)),
        ("all_gather_single into", comm.all_gather_single, (wide_gaps, good, False)),
        ("reduce_scatter of", comm.reduce_scatter, (good, gapped, SUM, False)),
        ("reduce_scatter into", comm.reduce_scatter, (gaps, goods, SUM, False)),
        ("reduce_scatter_v of", comm.reduce_scatter_v, (good, gapped, SUM, False)),
        ("reduce_scatter_single of", comm.reduce_scatter_single, (good, wide_gaps, SUM, False)),
        ("reduce_scatter_single into", comm.reduce_scatter_single, (gaps, wide, SUM, False)),
        ("all_to_all_single of", comm.all_to_all_single, (wide, wide_gaps, False)),
        ("all_to_all_single into", comm.all_to_all_single, (wide_gaps, wide, False)),
        ("all_to_all_v_single of", comm.all_to_all_v_single, (wide, wide_gaps, ones, ones, False)),
        ("all_to_all_v_single into", comm.all_to_all_v_single, (wide_gaps, wide, ones, ones, False)),
        ("all_to_all of", comm.all_to_all, (goods, gapped, False)),
        ("all_to_all into", comm.all_to_all, (gapped, goods, False)),
        ("scatter of", comm.scatter, (good, gapped, root, False)),
        ("scatter into", comm.scatter, (gaps, goods, root, False)),
        ("gather of", comm.gather, (goods, gaps, root, False)),
        ("gather into", comm.gather, (gapped, good, root, False)),
        ("gather_single of", comm.gather_single, (wide, gaps, root, False)),
        ("gather_single into", comm.gather_single, (wide_gaps, good, root, False)),
        ("batch send", batch, (comm, "send", gaps, peer)),
        ("batch recv", batch, (comm, "recv", gaps, peer)),
    ]
    for name, function, arguments in calls:
        report.refuses(f"{name} a tensor with gaps", ["contiguous"], function, *arguments)
    report.expect(total(comm) == world, "the communicator does not serve after refusals")


def lists_of_another_length_are_refused_with_both_lengths(comm: TorchComm, report: Report) -> None:
    world, root = comm.get_size(), comm.get_rank()
    good, wide = torch.ones(6), torch.ones(6 * world)
    goods, ones = [good] * world, [1] * world
    for many in (world - 1, world + 1, 0):
        wrong, wrong_ones = [good] * many, [1] * many
        calls: Calls = [
            ("all_gather", comm.all_gather, (wrong, good, False)),
            ("all_gather_v", comm.all_gather_v, (wrong, good, False)),
            ("reduce_scatter", comm.reduce_scatter, (good, wrong, SUM, False)),
            ("reduce_scatter_v", comm.reduce_scatter_v, (good, wrong, SUM, False)),
            ("all_to_all of", comm.all_to_all, (goods, wrong, False)),
            ("all_to_all into", comm.all_to_all, (wrong, goods, False)),
            ("scatter", comm.scatter, (good, wrong, root, False)),
            ("gather", comm.gather, (wrong, good, root, False)),
        ]
        if many > 0:
            calls += [
                ("all_to_all_v_single of", comm.all_to_all_v_single, (wide, wide, ones, wrong_ones, False)),
                ("all_to_all_v_single into", comm.all_to_all_v_single, (wide, wide, wrong_ones, ones, False)),
            ]
        for name, function, arguments in calls:
            words = [rf"\b{many}\b", rf"\b{world}\b"]
            report.refuses(f"{name} with {many} for {world} ranks", words, function, *arguments)
    report.expect(total(comm) == world, "the communicator does not serve after refusals")


def sizes_and_types_that_do_not_fit_are_refused(comm: TorchComm, report: Report) -> None:
    world, root = comm.get_size(), comm.get_rank()
    good, wide, odd, other = torch.ones(6), torch.ones(6 * world), torch.ones(7), torch.ones(6).double()
    goods, ones = [good] * world, [1] * world
    unequal = torch.ones(2 * world + 1)
    calls: Calls = [
        ("all_gather", comm.all_gather, ([*[good] * (world - 1), odd], good, False)),
        ("all_gather_v", comm.all_gather_v, ([odd] * world, good, False)),
        ("all_gather_single", comm.all_gather_single, (torch.ones(6 * world + 1), good, False)),
        ("reduce_scatter", comm.reduce_scatter, (good, [*[good] * (world - 1), odd], SUM, False)),
        ("reduce_scatter_v", comm.reduce_scatter_v, (good, [odd] * world, SUM, False)),
        ("reduce_scatter_single", comm.reduce_scatter_single, (good, good, SUM, False)),
        ("all_to_all_single", comm.all_to_all_single, (wide, good, False)),
        ("all_to_all_single by ranks", comm.all_to_all_single, (unequal, unequal, False)),
        ("scatter", comm.scatter, (good, [*[good] * (world - 1), odd], root, False)),
        ("gather", comm.gather, ([*[good] * (world - 1), odd], good, root, False)),
        ("gather_single", comm.gather_single, (good, good, root, False)),
        ("a sent split too large", comm.all_to_all_v_single, (good, good, ones, [4] * world, False)),
        ("a received split too large", comm.all_to_all_v_single, (good, good, [4] * world, ones, False)),
        ("a split below zero", comm.all_to_all_v_single, (good, good, ones, [-1, *ones[1:]], False)),
        ("a persistent all-gather", persistent, (comm, good, good)),
    ]
    for name, function, arguments in calls:
        report.refuses(f"{name} with sizes that do not fit", [r"\d"], function, *arguments)
    calls = [
        ("all_gather", comm.all_gather, ([*[good] * (world - 1), other], good, False)),
        ("all_gather_single", comm.all_gather_single, (wide.double(), good, False)),
        ("reduce_scatter", comm.reduce_scatter, (other, goods, SUM, False)),
        ("reduce_scatter_single", comm.reduce_scatter_single, (other, wide, SUM, False)),
        ("all_to_all_single", comm.all_to_all_single, (wide.double(), wide, False)),
        ("scatter", comm.scatter, (other, goods, root, False)),
        ("gather", comm.gather, ([other] * world, good, root, False)),
    ]
    for name, function, arguments in calls:
        report.refuses(f"{name} with two types", ["float64", "float32"], function, *arguments)
    report.expect(total(comm) == world, "the communicator does not serve after refusals")


def persistent(comm: TorchComm, output: torch.Tensor, input: torch.Tensor) -> object:
    """A prepared all-gather that is run at once."""
    return comm.all_gather_p_exec(comm.all_gather_p_init(output), input, False)


def reductions_that_make_no_sense_are_refused(comm: TorchComm, report: Report) -> None:
    world = comm.get_size()
    senseless = [
        (dtype, op) for dtype in FLOATS + COMPLEX for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
    ]
    senseless += [(dtype, op) for dtype in COMPLEX for op in (ReduceOp.MIN, ReduceOp.MAX)]
    senseless += [(dtype, op) for dtype in FLOATS_OF_8_BITS for op in (SUM, ReduceOp.MAX, ReduceOp.BOR)]
    for dtype, op in senseless:
        tensor, name = torch.ones(4).to(dtype), str(dtype).removeprefix("torch.")
        what, words = f"{name_of(op)} of {name}", [name]
        report.refuses(f"all_reduce {what}", words, comm.all_reduce, tensor, op, False)
        report.refuses(f"reduce {what}", words, comm.reduce, tensor, 0, op, False)
        parts = [tensor] * world
        report.refuses(f"reduce_scatter {what}", words, comm.reduce_scatter, tensor, parts, op, False)
    two = ReduceOp.PREMUL_SUM(torch.ones(2))
    report.refuses("two factors", ["factor"], comm.all_reduce, torch.ones(4), two, False)
    report.expect(total(comm) == world, "the communicator does not serve after refusals")


def what_has_ended_is_refused(comm: TorchComm, report: Report) -> None:
    rank, world = comm.get_rank(), comm.get_size()
    report.refuses("an empty batch", [], comm.batch_op_create().issue, False)
    output, mine = torch.zeros(world), torch.ones(1)
    handle = comm.all_gather_p_init(output)
    comm.all_gather_p_exec(handle, mine, False)
    comm.all_gather_p_free(handle)
    report.refuses("a freed all-gather", ["freed"], comm.all_gather_p_exec, handle, mine, False)
    ended = comm.split(list(range(world)), name="ended")
    assert ended is not None
    ended.finalize()
    report.refuses("finalize twice", ["finalize"], ended.finalize)
    report.refuses("a barrier after finalize", ["finalize"], ended.barrier, False)
    report.refuses("a split after finalize", ["finalize"], ended.split, [rank])
    report.refuses("a window after finalize", ["finalize"], ended.new_window)
    report.expect((ended.get_rank(), ended.get_size()) == (rank, world), "getters do not work after finalize")
    report.expect(total(comm) == world, "the communicator does not serve after refusals")


def ranks_that_ask_for_different_things_all_hear_of_it(comm: TorchComm, report: Report) -> None:
    world, rank = comm.get_size(), comm.get_rank()
    different = comm.split(list(range(world)), name="different")
    assert different is not None
    tensor = torch.ones(100 if rank == world - 1 else 10)
    report.refuses("different counts", ["rank"], different.all_reduce, tensor, SUM, False)
    report.expect(different.is_aborted(), "ranks that disagree go on")
    report.refuses("a call after that", [], different.barrier, False)
    different.finalize()
    report.expect(total(comm) == world, "the parent suffers from ranks that disagree in a split")


REFUSALS: list[Chapter] = [
    ranks_out_of_range_are_refused_with_the_range_and_the_value,
    tensors_with_gaps_are_refused,
    lists_of_another_length_are_refused_with_both_lengths,
    sizes_and_types_that_do_not_fit_are_refused,
    reductions_that_make_no_sense_are_refused,
    what_has_ended_is_refused,
    ranks_that_ask_for_different_things_all_hear_of_it,
]
