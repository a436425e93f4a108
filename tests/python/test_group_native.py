"""Groups of fixed ranks as Python's packages use them: memory by address, failures by kind, signals and forks."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from child import Child, Spawn
from peers import DEADLINE, outcomes, together
from ringfold import _native
from ringfold._error import GroupError
from ringfold._native import Group

MEDIA = ("tcp", "shared")
U8, I32, F32 = 0, 5, 10
SUM, AVG = 0, 1
PROMPT = 5.0

Spans = list[tuple[int, int]]


def span(data: array[Any], first: int = 0, last: int | None = None) -> tuple[int, int]:
    """Address and size of some elements."""
    address, count = data.buffer_info()
    last = count if last is None else last
    return address + first * data.itemsize, (last - first) * data.itemsize


def run(group: Group, op: str, inputs: Spans, outputs: Spans, dtype: int = I32, **more: Any) -> None:
    group.run(
        op,
        dtype,
        more.get("reduce", SUM),
        more.get("peer", -1),
        more.get("counts"),
        more.get("others"),
        inputs,
        outputs,
        more.get("timeout"),
        more.get("tag", 0),
    )


def submit(
    group: Group, op: str, inputs: Spans, outputs: Spans, keep: object, **more: Any
) -> _native.GroupWork:
    reduce, peer, tag = more.get("reduce", SUM), more.get("peer", -1), more.get("tag", 0)
    return group.submit(op, I32, reduce, peer, more.get("counts"), None, inputs, outputs, None, tag, keep)


def barrier(group: Group, timeout: float | None = None) -> None:
    run(group, "barrier", [], [], timeout=timeout)


def groups(world: int, media: str, **more: Any) -> list[Group]:
    """All ranks of a group, within this process."""
    place = _native.BootstrapListener()

    def connect(rank: int) -> Group:
        at = place if rank == 0 else place.announcement
        options: dict[str, Any] = {"timeout": DEADLINE, "connect_timeout": DEADLINE, "name": "g", **more}
        return Group.connect(rank=rank, world=world, at=at, media=media, **options)

    return together(*(lambda rank=rank: connect(rank) for rank in range(world)))


def each(ranks: list[Group], call: Callable[[Group], Any]) -> list[Any]:
    """Makes the same call on all ranks; what each returned."""
    return together(*(lambda group=group: call(group) for group in ranks))


@pytest.fixture(params=MEDIA)
def pair(request: pytest.FixtureRequest) -> Iterator[list[Group]]:
    ranks = groups(2, request.param)
    yield ranks
    for group in ranks:
        group.retire()


@pytest.mark.parametrize("media", MEDIA)
def test_a_group_reports_its_members(media: str) -> None:
    ranks = groups(3, media)
    for rank, group in enumerate(ranks):
        assert (group.rank, group.world, group.name, group.is_shared) == (rank, 3, "g", media == "shared")
        assert [member.split(" (")[0] for member in group.members] == ["rank 0", "rank 1", "rank 2"]
        assert group.failure() is None


@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize("in_background", [False, True])
def test_every_operation_moves_what_it_should(media: str, in_background: bool) -> None:
    world = 3

    def play(group: Group) -> None:
        me = group.rank

        def go(op: str, inputs: Spans, outputs: Spans, keep: object, **more: Any) -> None:
            if in_background:
                assert submit(group, op, inputs, outputs, keep, **more).wait(DEADLINE)
            else:
                run(group, op, inputs, outputs, **more)

        data = array("i", [me + 1, 10])
        go("all_reduce", [span(data)], [span(data)], data)
        assert list(data) == [6, 30]
        data = array("i", [me + 1])
        go("reduce", [span(data)], [span(data)], data, peer=1)
        assert list(data) == [6 if me == 1 else me + 1]
        data = array("i", [me, me])
        go("broadcast", [span(data)], [span(data)], data, peer=2)
        assert list(data) == [2, 2]
        mine, whole = array("i", [me] * 2), array("i", bytes(4 * 2 * world))
        go("all_gather", [span(mine)], [span(whole)], (mine, whole))
        assert list(whole) == [0, 0, 1, 1, 2, 2]
        parts = [array("i", [9] * (rank + 1)) for rank in range(world)]
        mine, counts = array("i", [me] * (me + 1)), [1, 2, 3]
        go("all_gather_v", [span(mine)], [span(part) for part in parts], (mine, parts), counts=counts)
        assert [list(part) for part in parts] == [[0], [1, 1], [2, 2, 2]]
        parts = [array("i", [rank + me]) for rank in range(world)]
        one = array("i", [0])
        go("reduce_scatter", [span(part) for part in parts], [span(one)], (parts, one))
        assert list(one) == [3 * me + 3]
        given, taken = array("i", [10 * me + rank for rank in range(world)]), array("i", [0] * world)
        go("all_to_all", [span(given)], [span(taken)], (given, taken))
        assert list(taken) == [10 * rank + me for rank in range(world)]
        go("gather", [span(one)], [span(taken)] if me == 0 else [], (one, taken), peer=0)
        if me == 0:
            assert list(taken) == [3, 6, 9]
        go("scatter", [span(given)] if me == 1 else [], [span(one)], (given, one), peer=1)
        assert list(one) == [10 + me]
        empty = array("i")
        go("all_reduce", [span(empty)], [span(empty)], empty)
        go("barrier", [], [], None)

    each(groups(world, media), play)


def test_transfers_go_from_one_rank_to_another(pair: list[Group]) -> None:
    sent, received = array("i", range(100_000)), array("i", [0] * 100_000)
    work = submit(pair[0], "send", [span(sent)], [], sent, peer=1)
    run(pair[1], "recv", [], [span(received)], peer=0)
    assert work.wait(DEADLINE) and work.done() and received == sent


def test_a_receive_takes_what_was_sent_with_its_tag(pair: list[Group]) -> None:
    sent, received = [array("i", [tag]) for tag in range(3)], [array("i", [-1]) for _ in range(3)]
    works = [submit(pair[0], "send", [span(one)], [], one, peer=1, tag=tag) for tag, one in enumerate(sent)]
    for tag in (2, 0, 1):
        run(pair[1], "recv", [], [span(received[tag])], peer=0, tag=tag)
    assert all(work.wait(DEADLINE) for work in works) and received == sent


@pytest.mark.parametrize("in_background", [False, True])
def test_an_input_that_is_a_part_of_the_output_is_understood(pair: list[Group], in_background: bool) -> None:
    def gather(group: Group) -> list[int]:
        whole = array("i", [-1] * 8)
        first = 4 * group.rank + 1  # Shifted by one element.
        whole[first : first + 3] = array("i", [group.rank] * 3)
        mine = span(whole, first, first + 3)
        outputs = [span(whole, 0, 3), span(whole, 3, 6)]
        if in_background:
            assert submit(group, "all_gather", [mine], outputs, whole).wait(DEADLINE)
        else:
            run(group, "all_gather", [mine], outputs)
        return list(whole[:6])

    assert each(pair, gather) == [[0, 0, 0, 1, 1, 1]] * 2


@pytest.mark.parametrize("in_background", [False, True])
def test_outputs_may_overlap_and_the_last_one_wins(pair: list[Group], in_background: bool) -> None:
    def gather(group: Group) -> list[int]:
        mine, out = array("i", [10 * group.rank, 10 * group.rank + 1]), array("i", [-1] * 4)
        outputs = [span(out, 0, 2), span(out, 1, 3)]
        if in_background:
            assert submit(group, "all_gather", [span(mine)], outputs, (mine, out)).wait(DEADLINE)
        else:
            run(group, "all_gather", [span(mine)], outputs)
        return list(out)

    assert each(pair, gather) == [[0, 10, 11, -1]] * 2


def test_averages_of_integers_are_truncated_toward_zero(pair: list[Group]) -> None:
    def average(group: Group) -> list[int]:
        data = array("i", [[-3, 3, 0], [0, 0, -1]][group.rank])
        run(group, "all_reduce", [span(data)], [span(data)], reduce=AVG)
        return list(data)

    assert each(pair, average) == [[-1, 1, 0]] * 2


def test_every_reduction_of_every_type_is_right(pair: list[Group]) -> None:
    ours, theirs = [6, 5, 0, 1], [3, 7, 2, 1]
    integers: dict[int, Callable[[int, int], int]] = {
        0: lambda a, b: a + b,
        1: lambda a, b: (a + b) // 2,
        2: lambda a, b: a * b,
        3: max,
        4: min,
        6: lambda a, b: a & b,
        7: lambda a, b: a | b,
        8: lambda a, b: a ^ b,
    }
    codes = {0: "B", 1: "b", 2: "h", 3: "H", 4: "I", 5: "i", 6: "Q", 7: "q", 10: "f", 11: "d"}
    for dtype, code in codes.items():
        for op, expected in integers.items():
            if code in "fd" and op >= 6:
                continue

            def reduce(group: Group, dtype: int = dtype, code: str = code, op: int = op) -> list[float]:
                data = array(code, [ours, theirs][group.rank])
                run(group, "all_reduce", [span(data)], [span(data)], dtype=dtype, reduce=op)
                return list(data)

            exact = [
                (a + b) / 2 if code in "fd" and op == AVG else expected(a, b) for a, b in zip(ours, theirs)
            ]
            assert each(pair, reduce) == [exact] * 2, (code, op)

    def halves(group: Group, dtype: int, one_and_a_half: int) -> list[int]:
        """Bits of float16 or bfloat16: 1.5 + 1.5."""
        data = array("H", [one_and_a_half])
        run(group, "all_reduce", [span(data)], [span(data)], dtype=dtype)
        return list(data)

    assert each(pair, lambda group: halves(group, 8, 0x3E00)) == [[0x4200]] * 2
    assert each(pair, lambda group: halves(group, 9, 0x3FC0)) == [[0x4040]] * 2
    for dtype in (8, 9, 10, 11):
        with pytest.raises(GroupError) as caught:
            run(pair[0], "all_reduce", [(8, 8)], [(8, 8)], dtype=dtype, reduce=6)
        assert caught.value.kind == "argument"


def test_invalid_arguments_are_rejected_without_disturbing_the_group(pair: list[Group]) -> None:
    one, two = array("i", [1]), array("i", [1, 2])
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("2 is out of range: ranks are 0 to 1", lambda: run(pair[0], "broadcast", [], [span(one)], peer=2)),
        ("-1 is out of range", lambda: run(pair[0], "send", [span(one)], [])),
        ("itself", lambda: run(pair[0], "send", [span(one)], [], peer=0)),
        ("expected", lambda: run(pair[0], "all_gather", [span(one)], [span(one)])),
        ("unknown element type 99", lambda: run(pair[0], "barrier", [], [], dtype=99)),
        (
            "unknown reduce operation 99",
            lambda: run(pair[0], "all_reduce", [span(one)], [span(one)], reduce=99),
        ),
        ('unknown operation "fly"', lambda: run(pair[0], "fly", [], [])),
        ("invalid tag 2147483648", lambda: run(pair[0], "send", [span(one)], [], peer=1, tag=1 << 31)),
        ("counts", lambda: run(pair[0], "all_gather_v", [span(one)], [span(two)])),
        ("memory", lambda: run(pair[0], "all_reduce", [(0, 4)], [(0, 4)])),
        ("expected", lambda: submit(pair[0], "all_gather", [span(one)], [span(one)], one)),
    ]
    for words, call in wrong:
        with pytest.raises(GroupError, match=words) as caught:
            call()
        assert caught.value.kind == "argument"
    each(pair, barrier)


def test_a_timeout_names_the_missing_rank_of_a_group(pair: list[Group]) -> None:
    began = time.monotonic()
    with pytest.raises(GroupError, match=r"rank 1 \(") as caught:
        barrier(pair[0], 0.3)
    assert caught.value.kind == "timeout" and 0.25 < time.monotonic() - began < PROMPT
    failure = pair[1].failure()
    deadline = time.monotonic() + PROMPT
    while failure is None and time.monotonic() < deadline:
        time.sleep(0.01)
        failure = pair[1].failure()
    assert failure is not None and failure.kind == "timeout"


def test_mismatched_ranks_get_an_error(pair: list[Group]) -> None:
    data = array("i", [1, 2])
    ends = outcomes(
        lambda: run(pair[0], "all_reduce", [span(data)], [span(data)]),
        lambda: run(pair[1], "all_reduce", [span(data, 0, 1)], [span(data, 0, 1)]),
    )
    assert {end.kind for end in ends} == {"mismatch"}


def test_an_abort_ends_the_group_for_all(pair: list[Group]) -> None:
    work = submit(pair[1], "barrier", [], [], None)
    pair[0].abort()
    for _ in range(2):
        with pytest.raises(GroupError, match=r"rank 0 \(.*aborted the group") as caught:
            work.wait(DEADLINE)
        assert caught.value.kind == "aborted"
    with pytest.raises(GroupError) as caught:
        barrier(pair[0])
    assert caught.value.kind == "aborted"


def test_a_retired_group_takes_nothing_more_and_loses_nothing(pair: list[Group]) -> None:
    data = [array("i", [rank + 1] * 1000) for rank in range(2)]
    work = submit(pair[0], "all_reduce", [span(data[0])], [span(data[0])], data[0])
    began = time.monotonic()
    pair[0].retire()
    assert time.monotonic() - began < 1
    with pytest.raises(GroupError, match="finalized") as caught:
        barrier(pair[0])
    assert caught.value.kind == "left"
    run(pair[1], "all_reduce", [span(data[1])], [span(data[1])])
    assert work.wait(DEADLINE) and list(data[0]) == list(data[1]) == [3] * 1000
    with pytest.raises(GroupError, match=r"rank 0 \(.*left") as caught:
        barrier(pair[1])
    assert caught.value.kind == "lost"
    assert _native.finish_retired(DEADLINE) == 0


def test_a_work_can_be_waited_for_in_parts_and_dropped(pair: list[Group]) -> None:
    ones = [array("i", [1]) for _ in range(2)]
    work = submit(pair[0], "all_reduce", [span(ones[0])], [span(ones[0])], ones[0])
    assert not work.wait(0.05) and not work.wait(0) and not work.done()
    address, size = span(ones[1])
    # Only the engine holds the tensor and the work.
    submit(pair[1], "all_reduce", [(address, size)], [(address, size)], ones.pop())
    assert work.wait(DEADLINE) and work.wait(None) and work.done() and list(ones[0]) == [2]


def test_restoring_groups_restore_buffers_after_a_failure() -> None:
    for media in MEDIA:
        ranks = groups(2, media, restores=True)
        each(ranks, barrier)
        data = array("i", range(1000))
        with pytest.raises(GroupError):
            run(ranks[0], "all_reduce", [span(data)], [span(data)], timeout=0.3)
        assert data == array("i", range(1000))


def test_ranks_meet_by_a_rendezvous_written_in_python() -> None:
    class Board:
        """A rendezvous with a stale text of an earlier run."""

        text: str | None = "ringfold1:0:0:127.0.0.1:1"

        def post(self, text: str) -> None:
            self.text = text

        def read(self) -> str | None:
            return self.text

        def withdraw(self) -> None:
            self.text = None

        def describe(self) -> str:
            return "a board"

    board = Board()

    def connect(rank: int) -> Group:
        return Group.connect(
            rank=rank, world=2, name="g", at=board, timeout=DEADLINE, connect_timeout=DEADLINE
        )

    each(together(lambda: connect(0), lambda: connect(1)), barrier)
    assert board.text is None


def test_a_failed_rendezvous_reports_the_cause() -> None:
    class Broken:
        def read(self) -> str | None:
            raise ValueError("the store is gone")

        def post(self, text: str) -> None:
            raise ValueError("the store is gone")

        def withdraw(self) -> None: ...

        def describe(self) -> str:
            return "a broken store"

    options: dict[str, Any] = {"world": 2, "name": "g", "timeout": 1.0, "connect_timeout": 0.3}
    for rank in range(2):
        with pytest.raises(GroupError, match=r"a broken store.*the store is gone") as caught:
            Group.connect(rank=rank, at=Broken(), **options)
        assert caught.value.kind == "bootstrap"
    with pytest.raises(GroupError) as caught:
        Group.connect(rank=2, at=None, **options)
    assert caught.value.kind == "argument"


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(GroupError("rank 1 left", "lost")))
    assert isinstance(error, GroupError) and (str(error), error.kind) == ("rank 1 left", "lost")
    assert issubclass(GroupError, RuntimeError)


# A rank that is a process of its own. The test is rank 0, or another such process is.
RANK = """
import itertools, os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
from array import array
from ringfold import _native
from ringfold._error import GroupError
rank, at, media, what = sys.argv[1:]
class File:
    def post(self, text):
        with open(at + ".new", "w") as file:
            file.write(text)
        os.rename(at + ".new", at)
    def read(self):
        return open(at).read() if os.path.exists(at) else None
    def withdraw(self):
        pass
    def describe(self):
        return at
group = _native.Group.connect(
    rank=int(rank), world=2, name="g", at=File(), timeout=60.0, connect_timeout=60.0, media=media,
    restores=what == "endless",
)
address, count = (data := array("i", range(1000))).buffer_info()
spans = [(address, 4 * count)]
def run(op, inputs=[], outputs=[], peer=-1):
    group.run(op, 5, 0, peer, None, None, inputs, outputs, None)
def begin(op, inputs=[], outputs=[], peer=-1):
    return group.submit(op, 5, 0, peer, None, None, inputs, outputs, None, 0, data)
def told(call):
    try:
        call()
        print("ended", flush=True)
    except GroupError as error:
        print(error.kind, error, flush=True)
run("barrier")
print("ready", flush=True)
"""

CTRL_C = """
work = begin("all_reduce", spans, spans) if what.startswith("work") or what == "behind" else None
calls = {
    "barrier": lambda: run("barrier"),
    "all_reduce": lambda: run("all_reduce", spans, spans),
    "behind": lambda: run("barrier"),
    "recv": lambda: run("recv", [], spans, 1 - int(rank)),
    "work": lambda: work.wait(None),
    "work again": lambda: work.wait(None),
}
try:
    print("blocks", flush=True)
    calls[what]()
except KeyboardInterrupt:
    print("interrupted", flush=True)
if what == "work again":
    print("again", work.wait(None), data[1], flush=True)
"""

DYING = """
for step in itertools.count():
    if step == 10:
        print("goes on", flush=True)
    before = array("i", data)
    try:
        run("all_reduce", spans, spans)
    except GroupError as error:
        print(error.kind, "back" if data == before else "lost", error, flush=True)
        break
"""

FORKING = """
pid = os.fork()
if pid == 0:
    told(lambda: run("barrier"))
    told(lambda: begin("barrier"))
    group.retire()
    del group
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
run("barrier")
print("parent goes on", flush=True)
"""


def two(spawn: Spawn, tmp_path: Path, media: str, what: str, code: str, other: str) -> list[Child]:
    at = tmp_path / "meeting"
    ranks = [spawn(RANK + part, rank, at, media, what) for rank, part in enumerate((code, other))]
    for rank in ranks:
        rank.wait_for("ready", DEADLINE)
    return ranks


@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize("what", ["barrier", "all_reduce", "behind", "recv"])
def test_ctrl_c_ends_a_call_and_the_group(spawn: Spawn, tmp_path: Path, media: str, what: str) -> None:
    wait = 'signal.sigwait([signal.SIGUSR1])\ntold(lambda: run("barrier"))\n'
    child, other = two(spawn, tmp_path, media, what, CTRL_C, wait)
    child.wait_for("blocks", DEADLINE)
    child.wait_until_blocked()
    began = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    child.wait_for("interrupted", PROMPT)
    assert time.monotonic() - began < PROMPT
    child.succeed(DEADLINE)
    other.signal(signal.SIGUSR1)
    assert other.wait_for("rank 0 (", DEADLINE).startswith("aborted ")


@pytest.mark.parametrize("media", MEDIA)
def test_ctrl_c_does_not_cancel_a_work(spawn: Spawn, tmp_path: Path, media: str) -> None:
    later = 'signal.sigwait([signal.SIGUSR1])\nrun("all_reduce", spans, spans)\n'
    child, other = two(spawn, tmp_path, media, "work again", CTRL_C, later)
    child.wait_for("blocks", DEADLINE)
    child.wait_until_blocked()
    os.kill(child.pid, signal.SIGINT)
    child.wait_for("interrupted", PROMPT)
    child.wait_until_blocked()
    other.signal(signal.SIGUSR1)
    child.wait_for("again True 2", DEADLINE)
    child.succeed(DEADLINE)
    other.succeed(DEADLINE)


@pytest.mark.parametrize("media", MEDIA)
def test_a_killed_rank_is_named_and_memory_is_restored(spawn: Spawn, tmp_path: Path, media: str) -> None:
    child, other = two(spawn, tmp_path, media, "endless", DYING, DYING)
    for rank in (child, other):
        rank.wait_for("goes on", DEADLINE)
    os.kill(other.pid, signal.SIGKILL)
    assert child.wait_for("rank 1 (", PROMPT).startswith("lost back ")
    child.succeed(DEADLINE)


@pytest.mark.parametrize("media", MEDIA)
def test_a_forked_child_can_neither_use_nor_end_a_group(spawn: Spawn, tmp_path: Path, media: str) -> None:
    child, other = two(spawn, tmp_path, media, "fork", FORKING, 'run("barrier")\n')
    output = child.succeed(DEADLINE)
    assert (
        output.count("argument invalid use after a fork: this object belongs to process") == 2
        and "parent goes on" in output
    )
    other.succeed(DEADLINE)


@pytest.mark.parametrize("media", MEDIA)
def test_a_daemon_thread_in_an_operation_does_not_keep_the_program(
    spawn: Spawn, tmp_path: Path, media: str
) -> None:
    code = f"""
import atexit, threading
atexit.register(lambda: (_native.begin_interpreter_exit(), group.retire(), _native.finish_retired(0.2)))
sys.path.append({str(Path(__file__).parent)!r})
from blocked import wait_until_blocked
thread = threading.Thread(target=lambda: run("barrier"), daemon=True)
thread.start()
wait_until_blocked(os.getpid(), thread.native_id)
"""
    child, other = two(spawn, tmp_path, media, "daemon", code, 'told(lambda: run("recv", [], spans, 0))\n')
    began = time.monotonic()
    child.succeed(DEADLINE)
    assert time.monotonic() - began < 2 * PROMPT
    assert "rank 0 (" in other.succeed(DEADLINE)


def test_several_threads_may_have_operations_under_way(pair: list[Group]) -> None:
    """Transfers of threads of their own, beside collectives."""
    data = [array("i", [rank] * 50_000) for rank in range(2)]
    got = [array("i", [0] * 50_000) for _ in range(2)]

    def reduce(group: Group) -> None:
        for _ in range(200):
            one = array("i", [1])
            run(group, "all_reduce", [span(one)], [span(one)])
            assert one[0] == 2

    def swap(group: Group) -> None:
        me = group.rank
        for _ in range(20):
            work = submit(group, "send", [span(data[me])], [], data[me], peer=1 - me)
            run(group, "recv", [], [span(got[me])], peer=1 - me)
            assert work.wait(DEADLINE) and got[me] == data[1 - me]

    threads = [threading.Thread(target=call, args=(group,)) for group in pair for call in (reduce, swap)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert all(group.failure() is None for group in pair)
