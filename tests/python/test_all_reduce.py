"""All-reduces from Python: results, rejected calls, deaths, and what is reported."""

from __future__ import annotations

from array import array
from typing import Any

import pccl
import pytest
from child import Spawn
from peers import DEADLINE, begin, connected, join, outcomes, together

Op = pccl.ReduceOp


def floats(*values: float) -> array[float]:
    return array("f", values)


def in_place(peer: pccl.Communicator, data: Any, **options: Any) -> pccl.ReduceInfo:
    return peer.all_reduce(data, data, **options)


def test_an_unconnected_communicator_is_an_error() -> None:
    comm = pccl.Communicator("127.0.0.1:1")
    data = floats(1)
    for call in (
        lambda: in_place(comm, data),
        lambda: comm.all_reduce_async(data, data),
        lambda: comm.all_reduce_multiple_with_retry(
            [pccl.ReduceOpDescriptor(data, data, pccl.ReduceDescriptor(1))]
        ),
    ):
        with pytest.raises(pccl.PCCLError, match="not connected") as caught:
            call()
        assert caught.value.result is pccl.Result.INVALID_USAGE


def test_alone_there_are_too_few_peers_also_at_the_launch(master: str) -> None:
    with pccl.Communicator(master) as comm:
        comm.connect()
        data = floats(1)
        for call in (
            lambda: in_place(comm, data),
            lambda: comm.all_reduce_async(data, data),
            lambda: comm.all_reduce_multiple_with_retry(
                [pccl.ReduceOpDescriptor(data, data, pccl.ReduceDescriptor(1))]
            ),
        ):
            with pytest.raises(pccl.PCCLError) as caught:
                call()
            assert caught.value.result is pccl.Result.TOO_FEW_PEERS and caught.value.is_retryable
        # The tag is free again.
        with pytest.raises(pccl.PCCLError, match="TOO_FEW_PEERS"):
            comm.all_reduce_async(data, data)
        assert data.tolist() == [1]


@pytest.mark.parametrize(
    "op, code, expected",
    [
        (Op.SUM, "f", [8.0, -2.0]),
        (Op.AVG, "f", [4.0, -1.0]),
        (Op.PROD, "f", [15.0, -8.0]),
        (Op.MAX, "f", [5.0, 2.0]),
        (Op.MIN, "f", [3.0, -4.0]),
        (Op.AVG, "i", [4, -1]),
        (Op.SUM, "i", [8, -2]),
    ],
)
def test_operations_do_what_they_are_called(master: str, op: Op, code: str, expected: list[float]) -> None:
    with connected(master) as (a, b):
        one, other = array(code, [3, 2]), array(code, [5, -4])
        infos = together(lambda: in_place(a, one, op=op), lambda: in_place(b, other, op=op))
        assert one.tolist() == other.tolist() == expected
        assert all(info.local_world_size == info.world_size == 2 for info in infos)
        assert all(info.tx_bytes > 0 and info.rx_bytes > 0 for info in infos)


def test_an_average_of_integers_is_rounded_toward_zero(master: str) -> None:
    with connected(master) as (a, b):
        one, other = array("i", [3, -3, 0]), array("i", [4, -4, -1])
        together(lambda: in_place(a, one, op=Op.AVG), lambda: in_place(b, other, op=Op.AVG))
        assert one.tolist() == other.tolist() == [3, -3, 0]


def test_out_of_place_the_input_stays(master: str) -> None:
    with connected(master) as peers:
        send, recv = floats(1, 2), floats(0, 0)
        other = floats(10, 20)
        together(lambda: peers[0].all_reduce(send, recv), lambda: in_place(peers[1], other))
        assert send.tolist() == [1, 2] and recv.tolist() == other.tolist() == [11, 22]


def test_empty_buffers_are_reduced(master: str) -> None:
    with connected(master) as (a, b):
        infos = together(lambda: in_place(a, floats()), lambda: in_place(b, floats()))
        assert [info.world_size for info in infos] == [2, 2]


@pytest.mark.parametrize(
    "mine, its, options, its_options",
    [
        (floats(1, 2), floats(1, 2, 3), {}, {}),
        (floats(1, 2), array("i", [1, 2]), {}, {}),
        (floats(1, 2), floats(1, 2), {"op": Op.SUM}, {"op": Op.MAX}),
        (
            floats(1, 2),
            floats(1, 2),
            {},
            {"quantization_options": pccl.QuantizationOptions(pccl.DataType.UINT8)},
        ),
    ],
    ids=["count", "type", "operation", "quantisation"],
)
def test_mismatched_peers_both_name_each_other(
    master: str, mine: Any, its: Any, options: Any, its_options: Any
) -> None:
    mine, its = mine[:], its[:]
    before = bytes(mine), bytes(its)
    with connected(master) as (a, b):
        for error in outcomes(lambda: in_place(a, mine, **options), lambda: in_place(b, its, **its_options)):
            assert isinstance(error, pccl.PCCLError), error
            assert "all_reduce" in str(error) and "a waits in" in str(error) and "b waits in" in str(error)
            assert not error.is_retryable, "a loop that retries would never end"
            assert error.result is pccl.Result.INVALID_ARGUMENT and error.kind == "mismatch"
        assert (bytes(mine), bytes(its)) == before
        # Only that operation failed.
        one, other = floats(1), floats(2)
        together(lambda: in_place(a, one), lambda: in_place(b, other))
        assert one.tolist() == [3]


@pytest.mark.parametrize("quantized", ["UINT8", "UINT16", "UINT32"])
@pytest.mark.parametrize("hint", pccl.DistributionHint, ids=lambda hint: hint.name)
def test_quantised_results_are_the_same_bits_on_all_peers(
    master: str, quantized: str, hint: pccl.DistributionHint
) -> None:
    options: dict[str, Any] = {
        "quantization_options": pccl.QuantizationOptions(
            pccl.DataType[quantized], pccl.QuantizationAlgorithm.MIN_MAX
        ),
        "operand_descriptor": pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT, hint),
        "op": Op.AVG,
    }
    with connected(master, 3) as peers:
        data = [array("f", [((i * 37 + k * 11) % 101) / 7 - 3 for i in range(1000)]) for k in range(3)]
        exact = [sum(d[i] for d in data) / 3 for i in range(1000)]
        together(*(lambda p=p, d=d: in_place(p, d, **options) for p, d in zip(peers, data)))
        assert bytes(data[0]) == bytes(data[1]) == bytes(data[2])
        assert max(abs(x - y) for x, y in zip(data[0], exact)) < 0.3


def test_error_feedback_brings_the_mean_close_to_the_truth(master: str) -> None:
    def error(peers: Any, tag: int, feedback: bool) -> float:
        options = pccl.QuantizationOptions(pccl.DataType.UINT8, error_feedback=feedback)
        sums = [0.0] * 1000
        for _ in range(16):
            data = [array("f", [i * (k + 1) / 1000 for i in range(1000)]) for k in range(2)]
            together(
                *(
                    lambda p=p, d=d: in_place(p, d, tag=tag, quantization_options=options)
                    for p, d in zip(peers, data)
                )
            )
            assert bytes(data[0]) == bytes(data[1])
            sums = [x + y for x, y in zip(sums, data[0])]
        return max(abs(x / 16 - 3 * i / 1000) for i, x in enumerate(sums))

    with connected(master) as (a, b):
        without = error((a, b), 1, False)
        assert error((a, b), 2, True) * 3 < without
        for peer in (a, b):
            peer.clear_error_feedback(2)
            peer.clear_error_feedback()
        with pytest.raises(pccl.PCCLError, match="only a quantized sum or average"):
            options = pccl.QuantizationOptions(pccl.DataType.UINT8, error_feedback=True)
            in_place(a, floats(1), op=Op.MAX, quantization_options=options)


def test_traffic_is_counted_per_peer(master: str) -> None:
    with connected(master) as (a, b):
        one, other = floats(1), floats(2)
        together(lambda: in_place(a, one), lambda: in_place(b, other))
        report = a.traffic()
        assert report.total.sent == 0 and report.total.local_sent > 0
        assert {peer.name for peer in report.peers} == {"master", "b"}


@pytest.mark.parametrize("cap", ["fast", "50", "1kbit"])
def test_invalid_caps_are_errors(cap: str) -> None:
    with pytest.raises((ValueError, pccl.PCCLError), match=r"invalid (max_upload|cap)"):
        pccl.Communicator("127.0.0.1:1", max_upload=cap)


def test_constants_are_exact_when_quantised(master: str) -> None:
    with connected(master) as (a, b):
        for algorithm in (
            pccl.QuantizationAlgorithm.MIN_MAX,
            pccl.QuantizationAlgorithm.ZERO_POINT_SCALE,
        ):
            options = pccl.QuantizationOptions(pccl.DataType.UINT8, algorithm)
            one, other = array("f", [42] * 99), array("f", [43] * 99)
            together(
                lambda one=one, options=options: in_place(a, one, quantization_options=options),
                lambda other=other, options=options: in_place(b, other, quantization_options=options),
            )
            if algorithm is pccl.QuantizationAlgorithm.MIN_MAX:
                assert one.tolist() == [85] * 99
            assert bytes(one) == bytes(other)


def test_invalid_quantisations_are_an_invalid_argument(master: str) -> None:
    with connected(master) as (a, _):
        for kind, data, op in (
            (pccl.DataType.FLOAT, floats(1), Op.SUM),
            (pccl.DataType.UINT8, array("i", [1]), Op.SUM),
            (pccl.DataType.UINT8, floats(1), Op.PROD),
            (pccl.DataType.INT8, floats(1), Op.SUM),
        ):
            with pytest.raises(pccl.PCCLError) as caught:
                in_place(a, data, op=op, quantization_options=pccl.QuantizationOptions(kind))
            assert caught.value.result is pccl.Result.INVALID_ARGUMENT
        none = pccl.QuantizationOptions(pccl.DataType.DOUBLE, pccl.QuantizationAlgorithm.NONE)
        with pytest.raises(pccl.PCCLError, match="timed out waiting for b"):
            in_place(a, floats(1), quantization_options=none, deadline=0.3)


def test_weights_are_shares_of_an_average(master: str) -> None:
    with connected(master) as (a, b):
        one, other = floats(1, 10), floats(5, 50)
        together(
            lambda: in_place(a, one, op=Op.AVG, weight=3.0), lambda: in_place(b, other, op=Op.AVG, weight=1)
        )
        assert one.tolist() == other.tolist() == [2, 20]
        with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*average of floats"):
            in_place(a, one, op=Op.SUM, weight=1.0)


@pytest.mark.parametrize("of_peers", [True, False])
def test_a_reproducible_all_reduce_is_right_and_cannot_be_quantised(master: str, of_peers: bool) -> None:
    of_calls = {} if of_peers else {"reproducible": True}
    with connected(master, reproducible=of_peers) as (a, b):
        one, other = floats(1, 10), floats(5, 50)
        together(lambda: in_place(a, one, **of_calls), lambda: in_place(b, other, **of_calls))
        assert one.tolist() == other.tolist() == [6, 60]
        quantized = pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm.MIN_MAX)
        with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*cannot be reproducible"):
            in_place(a, one, quantization_options=quantized, **of_calls)


def test_a_deadline_ends_the_operation_and_names_who_is_missing(master: str) -> None:
    with connected(master) as (a, b):
        data = floats(1, 2)
        with pytest.raises(
            pccl.PCCLError, match="RANK_CONNECTION_LOST: all_reduce: .* waiting for b"
        ) as caught:
            in_place(a, data, deadline=0.3)
        assert caught.value.is_retryable and data.tolist() == [1, 2]
        assert type(caught.value) is pccl.OperationTimedOut
        other = floats(10, 20)

        def again(peer: pccl.Communicator, values: Any) -> None:
            # It was ended for b as well, which may hear of it only when it comes; a waits for it meanwhile.
            while True:
                try:
                    in_place(peer, values)
                    return
                except pccl.PCCLError as error:
                    assert error.is_retryable

        assert outcomes(lambda: again(b, other), lambda: again(a, data)) == [None, None]
        assert data.tolist() == other.tolist() == [11, 22]


VICTIM = """
import sys, time
import pccl
comm = pccl.Communicator(sys.argv[1], name="victim")
comm.connect()
while comm.world_size < int(sys.argv[2]):
    comm.update_topology()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_death_fails_the_operation_on_all_others_and_restores_their_data(master: str, spawn: Spawn) -> None:
    ours = [pccl.Communicator(master, name=name) for name in "ab"]
    joining = [begin(join, comm, 3) for comm in ours]
    victim = spawn(VICTIM, master, 3)
    victim.wait_for("ready", DEADLINE)
    for future in joining:
        future.result(DEADLINE)
    data = [floats(1, 2), floats(10, 20)]
    going = [begin(in_place, comm, d) for comm, d in zip(ours, data)]
    handle = ours[0].all_reduce_async(floats(5), floats(5), tag=9)
    victim.kill()
    for future in going:
        error = future.exception(DEADLINE)
        assert isinstance(error, pccl.PCCLError) and error.is_retryable
        assert error.result is pccl.Result.RANK_CONNECTION_LOST and "victim" in str(error)
    assert [d.tolist() for d in data] == [[1, 2], [10, 20]]
    # Also operations that only one peer had launched; wait() raises nothing.
    success, status, info = handle.wait()
    assert not success and status == pccl.Result.RANK_CONNECTION_LOST and isinstance(info, pccl.ReduceInfo)
    assert handle.error is not None and "victim" in str(handle.error)
    assert handle.wait() == (success, status, info)
    # After a failed collective the world size is current.
    assert [comm.world_size for comm in ours] == [2, 2]
    together(*(lambda c=c, d=d: in_place(c, d) for c, d in zip(ours, data)))
    assert [d.tolist() for d in data] == [[11, 22], [11, 22]]
    for comm in ours:
        comm.leave()


def test_many_are_reduced_again_when_a_peer_dies_and_each_is_counted_once(master: str, spawn: Spawn) -> None:
    ours = [pccl.Communicator(master, name=name) for name in "ab"]
    joining = [begin(join, comm, 3) for comm in ours]
    victim = spawn(VICTIM, master, 3)
    victim.wait_for("ready", DEADLINE)
    for future in joining:
        future.result(DEADLINE)
    data = [[floats(1 + t) for t in range(8)], [floats(10 + t) for t in range(8)]]

    def many(which: int, limit: int) -> pccl.ReduceInfo:
        wanted = [
            pccl.ReduceOpDescriptor(d, d, pccl.ReduceDescriptor(1, tag=t)) for t, d in enumerate(data[which])
        ]
        return ours[which].all_reduce_multiple_with_retry(wanted, max_in_flight=limit)

    going = [begin(many, 0, 1), begin(many, 1, 5)]
    victim.kill()
    infos = [future.result(DEADLINE) for future in going]
    assert [info.world_size for info in infos] == [2, 2] and all(info.tx_bytes > 0 for info in infos)
    expected = [[11.0 + 2 * t] for t in range(8)]
    assert [d.tolist() for d in data[0]] == [d.tolist() for d in data[1]] == expected
    for comm in ours:
        comm.leave()


def test_many_are_given_by_their_addresses(master: str) -> None:
    what = pccl.ReduceDescriptor(2, operand_descriptor=pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT))
    with connected(master) as peers:
        data = [(floats(1 + index, 2), floats(0, 0)) for index in range(2)]

        def many(which: int) -> pccl.ReduceInfo:
            send, recv = (one.buffer_info()[0] for one in data[which])
            wanted = [pccl.ReduceOpDescriptor(sendbuf_ptr=send, recvbuf_ptr=recv, reduce_descriptor=what)]
            return peers[which].all_reduce_multiple_with_retry(wanted)

        for info in together(lambda: many(0), lambda: many(1)):
            assert info.world_size == 2
        assert [recv.tolist() for _, recv in data] == [[3.0, 4.0]] * 2
        wanted = [pccl.ReduceOpDescriptor(1, 1, pccl.ReduceDescriptor(2))]
        with pytest.raises(TypeError, match="operand_descriptor"):
            peers[0].all_reduce_multiple_with_retry(wanted)
    with pytest.raises(TypeError, match="either send or sendbuf_ptr"):
        pccl.ReduceOpDescriptor(1, 1, what, sendbuf_ptr=1)


def test_many_at_once_with_different_limits_and_orders(master: str) -> None:
    with connected(master) as peers:
        data = [[floats(t + 1) for t in range(12)] for _ in peers]

        def many(which: int, limit: int) -> pccl.ReduceInfo:
            wanted = [
                pccl.ReduceOpDescriptor(d, d, pccl.ReduceDescriptor(1, Op.SUM, t))
                for t, d in enumerate(data[which])
            ]
            return peers[which].all_reduce_multiple_with_retry(
                wanted if which else wanted[::-1], max_in_flight=limit
            )

        together(lambda: many(0, 2), lambda: many(1, 3))
        assert [d.tolist() for d in data[0]] == [[2.0 * (t + 1)] for t in range(12)]
        with pytest.raises(ValueError, match="max_in_flight"):
            many(0, 0)
        with pytest.raises(ValueError, match="empty"):
            peers[0].all_reduce_multiple_with_retry([])
        twice = [pccl.ReduceOpDescriptor(d, d, pccl.ReduceDescriptor(1, tag=3)) for d in data[0][:2]]
        with pytest.raises(pccl.PCCLError, match="INVALID_ARGUMENT.*tag 3"):
            peers[0].all_reduce_multiple_with_retry(twice)
        with pytest.raises(TypeError, match="ReduceOpDescriptor"):
            peers[0].all_reduce_multiple_with_retry([data[0][0]])  # type: ignore[list-item]
