"""What can be reduced and shared: every type of numpy and torch, every shape, every buffer; and what cannot."""

from __future__ import annotations

import array
import gc
import resource
import weakref
from collections.abc import Iterator
from typing import Any

import pccl
import pytest
from peers import connected, outcomes, together


@pytest.fixture(scope="module")
def two() -> Iterator[list[pccl.Communicator]]:
    """Two connected peers for all tests of this file."""
    with pccl.MasterNode("127.0.0.1:0") as master, connected(master.address) as peers:
        yield peers


def reduce(two: list[pccl.Communicator], one: Any, other: Any, **options: Any) -> None:
    """In place."""
    together(*(lambda c=c, x=x: c.all_reduce(x, x, **options) for c, x in zip(two, (one, other))))


def refused(two: list[pccl.Communicator], send: Any, recv: Any, **options: Any) -> Exception:
    with pytest.raises((TypeError, ValueError, pccl.PCCLError)) as caught:
        two[0].all_reduce(send, recv, **options)
    return caught.value


NUMPY = "uint8 int8 int16 uint16 uint32 int32 uint64 int64 float16 float32 float64".split()


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays_of_every_type_are_reduced(two: list[pccl.Communicator], name: str) -> None:
    np = pytest.importorskip("numpy")
    one, other = np.arange(6, dtype=name).reshape(2, 3), np.full((2, 3), 10, name)
    reduce(two, one, other)
    assert one.tolist() == other.tolist() == [[10, 11, 12], [13, 14, 15]]


@pytest.mark.parametrize("name", [*NUMPY, "bfloat16"])
def test_torch_tensors_of_every_type_are_reduced(two: list[pccl.Communicator], name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    one, other = torch.arange(6).reshape(2, 3).to(dtype), torch.full((2, 3), 10).to(dtype)
    reduce(two, one, other)
    assert one.tolist() == other.tolist() == [[10, 11, 12], [13, 14, 15]]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3, 4), (1, 1, 1, 5), (257,)])
def test_any_shape_will_do(two: list[pccl.Communicator], shape: tuple[int, ...]) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    one, other = np.full(shape, 2.0, np.float32), torch.full(shape, 3.0)
    reduce(two, one, other)
    assert one.shape == tuple(other.shape) == shape
    assert (one == 5).all() and bool((other == 5).all())


def test_send_and_recv_may_differ_in_shape_and_in_library(two: list[pccl.Communicator]) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    send, recv, other = np.ones((2, 2), np.float32), torch.zeros(4), torch.ones(4)
    together(lambda: two[0].all_reduce(send, recv), lambda: two[1].all_reduce(other, other))
    assert recv.tolist() == [2.0] * 4 and send.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_what_autograd_watches_is_reduced_in_place(two: list[pccl.Communicator]) -> None:
    torch = pytest.importorskip("torch")
    leaf = torch.ones(3, requires_grad=True)
    result = leaf * 2
    parameter = torch.nn.Parameter(torch.ones(3))
    for tensor, sum in ((leaf, 2.0), (result, 4.0), (parameter, 2.0)):
        reduce(two, tensor, tensor.detach().clone())
        assert tensor.tolist() == [sum] * 3 and tensor.requires_grad
    result.sum().backward()
    assert leaf.grad.tolist() == [2.0] * 3
    reduce(two, leaf.grad, torch.ones(3))
    assert leaf.grad.tolist() == [3.0] * 3


@pytest.mark.parametrize(
    "make", [bytearray, lambda b: memoryview(bytearray(b)), lambda b: array.array("B", b)]
)
def test_plain_buffers_of_python_are_reduced(two: list[pccl.Communicator], make: Any) -> None:
    one, other = make(b"\1\2\3"), make(b"\4\5\6")
    reduce(two, one, other)
    assert bytes(one) == bytes(other) == b"\5\7\11"


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_arrays_of_python_have_their_types(two: list[pccl.Communicator], code: str) -> None:
    one, other = array.array(code, [1, 2, 3]), array.array(code, [10, 20, 30])
    reduce(two, one, other)
    assert one.tolist() == other.tolist() == [11, 22, 33]


def test_uint16_can_be_declared_as_bfloat16(two: list[pccl.Communicator]) -> None:
    np = pytest.importorskip("numpy")
    one, other = np.full(3, 0x3F80, np.uint16), np.full(3, 0x4000, np.uint16)
    said = pccl.ReduceOperandDescriptor(pccl.DataType.BFLOAT16)
    reduce(two, one, other, operand_descriptor=said)
    assert one.tolist() == [0x4040] * 3, "1 + 2 = 3"
    info = pccl.TensorInfo("bits", data=one, dtype=pccl.DataType.BFLOAT16)
    assert info.dtype is pccl.DataType.BFLOAT16 and info.data_ptr == one.ctypes.data


@pytest.mark.parametrize(
    "make, word",
    [
        (lambda np: np.ones((4, 4), np.float32)[:, 1], "contiguous"),
        (lambda np: np.ones((4, 5), np.float32).T, "contiguous"),
        (lambda np: np.ones(8, np.float32)[::2], "contiguous"),
        (lambda np: np.ones(8, np.float32)[::-1], "contiguous"),
        (lambda np: np.ones(3, ">f4"), "byte order"),
        (lambda np: np.ones(3, bool), "format"),
        (lambda np: np.ones(3, complex), "format"),
        (lambda np: np.array(["a", "b"]), "format"),
        (lambda np: np.array([None]), "format"),
        (lambda np: [1.0, 2.0], "list"),
        (lambda np: "text", "str"),
        (lambda np: 5, "int"),
    ],
)
def test_irreducible_values_are_rejected_with_the_reason(
    two: list[pccl.Communicator], make: Any, word: str
) -> None:
    np = pytest.importorskip("numpy")
    unfit = make(np)
    error = refused(two, unfit, unfit)
    assert word in str(error) and "tensor" in str(error) and not isinstance(error, pccl.PCCLError)
    # As the result it is rejected by its own name, before any peer waits for others.
    if isinstance(unfit, np.ndarray):
        error = refused(two, np.ones(unfit.size, np.float32), unfit)
        assert word in str(error) and "recv" in str(error)
    with pytest.raises((TypeError, ValueError), match=word):
        pccl.TensorInfo("unfit", data=unfit)


@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.ones(3, 4).t(),
        lambda torch: torch.ones(8)[::2],
        lambda torch: torch.ones(1).expand(4),
        lambda torch: torch.ones(3, dtype=torch.bool),
        lambda torch: torch.ones(3, dtype=torch.complex64),
        lambda torch: torch.eye(3).to_sparse(),
        lambda torch: torch.empty(3, device="meta"),
    ],
)
def test_irreducible_torch_tensors_are_rejected(two: list[pccl.Communicator], make: Any) -> None:
    unfit = make(pytest.importorskip("torch"))
    assert not isinstance(refused(two, unfit, unfit), pccl.PCCLError)
    with pytest.raises((TypeError, ValueError)):
        pccl.TensorInfo.from_torch(unfit, "unfit")


def test_an_unknown_type_is_named_in_the_callers_words(two: list[pccl.Communicator]) -> None:
    torch = pytest.importorskip("torch")
    halves = torch.ones(3, dtype=torch.complex64)
    assert str(refused(two, halves, halves)) == "unsupported element type torch.complex64 of tensor"
    floats = torch.ones(3)
    assert str(refused(two, halves, floats)) == "unsupported element type torch.complex64 of send"


@pytest.mark.parametrize("deadline", [1e300, -1.0, float("nan"), float("inf")])
def test_a_deadline_that_no_clock_has_is_refused(two: list[pccl.Communicator], deadline: float) -> None:
    np = pytest.importorskip("numpy")
    error = refused(two, np.ones(4), np.ones(4), deadline=deadline)
    assert isinstance(error, ValueError) and str(error).startswith(f"invalid deadline {deadline!r}")


def test_mismatched_sizes_and_types_are_both_reported(two: list[pccl.Communicator]) -> None:
    np = pytest.importorskip("numpy")
    four = np.ones(4, np.float32)
    error = refused(two, four, np.ones(5, np.float32))
    assert isinstance(error, ValueError) and "4" in str(error) and "5" in str(error)
    error = refused(two, four, np.ones(4))
    assert isinstance(error, TypeError) and "float32" in str(error) and "float64" in str(error)
    said = pccl.ReduceOperandDescriptor(pccl.DataType.DOUBLE)
    assert isinstance(refused(two, four, four, operand_descriptor=said), TypeError)
    wide = np.ones(10, np.float32)
    assert "overlap" in str(refused(two, wide[:6], wide[2:8]))
    many = [pccl.ReduceOpDescriptor.from_numpy(four, four, pccl.ReduceDescriptor(3))]
    with pytest.raises(ValueError, match="3 elements.* 4"):
        two[0].all_reduce_multiple_with_retry(many)


def test_read_only_memory_is_read_and_never_written(two: list[pccl.Communicator]) -> None:
    np = pytest.importorskip("numpy")
    frozen = np.ones(3, np.float32)
    frozen.setflags(write=False)
    assert "read-only" in str(refused(two, frozen, frozen))
    assert "read-only" in str(refused(two, bytearray(3), b"abc"))
    for data in (frozen, b"abc", memoryview(b"abc")):
        with pytest.raises(ValueError, match="'state' is read-only"):
            pccl.TensorInfo("state", data=data)
    result, other = np.zeros(3, np.float32), np.ones(3, np.float32)
    together(lambda: two[0].all_reduce(frozen, result), lambda: two[1].all_reduce(other, other))
    assert result.tolist() == [2.0] * 3 and frozen.tolist() == [1.0] * 3
    mine, theirs = bytearray(3), bytearray(b"\1\1\1")
    together(lambda: two[0].all_reduce(b"\1\2\3", mine), lambda: two[1].all_reduce(theirs, theirs))
    assert mine == b"\2\3\4"


@pytest.mark.parametrize(
    "options",
    [
        {"op": 0},
        {"op": "SUM"},
        {"quantization_options": pccl.QuantizationAlgorithm.MIN_MAX},
        {"operand_descriptor": pccl.DataType.UINT8},
        {"tag": -1},
        {"tag": 1 << 64},
        {"tag": "a"},
        {"deadline": -1.0},
        {"deadline": float("nan")},
    ],
    ids=str,
)
def test_options_of_another_type_are_rejected(two: list[pccl.Communicator], options: dict[str, Any]) -> None:
    error = refused(two, bytearray(3), bytearray(3), **options)
    assert isinstance(error, (TypeError, ValueError)) and next(iter(options)) in str(error)


def test_a_large_tensor_is_not_copied(two: list[pccl.Communicator]) -> None:
    np = pytest.importorskip("numpy")
    size = 64 << 20
    sends = [np.full(size, i + 1, np.uint8) for i in range(2)]
    recvs = [np.empty(size, np.uint8) for _ in range(2)]
    for recv in recvs:
        recv.fill(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    together(*(lambda i=i: two[i].all_reduce(sends[i], recvs[i]) for i in range(2)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (recvs[0] == 3).all() and (recvs[1] == 3).all()
    # Both peers are in this process: a copy of one tensor would be 64 MiB, of each 128.
    assert grown < 60 << 10, f"{grown} KiB"


def test_tensors_of_an_operation_live_until_it_has_ended(two: list[pccl.Communicator]) -> None:
    np = pytest.importorskip("numpy")
    send, recv = np.ones(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
    ends = weakref.ref(send), weakref.ref(recv)
    window = recv[:4]
    handle = two[0].all_reduce_async(send, recv, tag=5)
    del send, recv
    gc.collect()
    assert ends[0]() is not None and ends[1]() is not None
    other = np.ones(1 << 16, np.float32)
    two[1].all_reduce(other, other, tag=5)
    assert handle.wait()[0] and window.tolist() == [2.0] * 4
    del handle, window
    # Buffers that other threads have released are freed by the next call.
    pccl.TensorInfo("x", data=bytearray(1))
    gc.collect()
    assert ends[0]() is None and ends[1]() is None


def test_tensors_of_a_shared_state_live_as_long_as_it(two: list[pccl.Communicator]) -> None:
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    arrays = np.full(1000, 7.0, np.float32), torch.full((1000,), 8.0)
    ends = [weakref.ref(array) for array in arrays]
    infos = [pccl.TensorInfo.from_numpy(arrays[0], "t0"), pccl.TensorInfo.from_torch(arrays[1], "t1")]
    states = [pccl.SharedState(infos)]
    infos.clear()
    del arrays
    gc.collect()
    copies = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
    other = pccl.SharedState([pccl.TensorInfo.from_numpy(copy, f"t{i}") for i, copy in enumerate(copies)])
    send, receive = pccl.SharedStateSyncStrategy.SEND_ONLY, pccl.SharedStateSyncStrategy.RECEIVE_ONLY
    ended = outcomes(
        lambda: two[0].sync_shared_state(states[0], send),
        lambda: two[1].sync_shared_state(other, receive),
    )
    assert ended == [pccl.SharedStateSyncInfo(8000, 0), pccl.SharedStateSyncInfo(0, 8000)]
    assert copies[0][0] == 7 and copies[1][0] == 8
    assert ends[0]() is not None
    states.clear()
    gc.collect()
    assert ends[0]() is None


def test_a_buffer_in_use_cannot_be_resized(two: list[pccl.Communicator]) -> None:
    data = bytearray(8)
    handle = two[0].all_reduce_async(data, data, tag=6)
    with pytest.raises(BufferError):
        data += b"more"
    together(lambda: two[1].all_reduce(bytearray(8), bytearray(8), tag=6), handle.wait)
    del handle
    pccl.TensorInfo("x", data=bytearray(1))
    data += b"more"


def test_tensors_without_memory_are_rejected(master: str) -> None:
    torch = pytest.importorskip("torch")
    negated = torch._neg_view(torch.ones(4))

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (4,), dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any, options: Any = None) -> Any:
            pytest.fail(f"{function} is computed, but only the memory was asked for")

    with pytest.raises(TypeError, match="negated view"):
        pccl.TensorInfo("x", data=negated)
    with pytest.raises(ValueError, match="invalid 'x': null: it has no plain memory"):
        pccl.TensorInfo("x", data=Wrapper())
