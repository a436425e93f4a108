"""Arrays and tensors in memory that the other ranks of the host read in place."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ringfold
from child import Spawn
from peers import DEADLINE, together
from ringfold import _native
from ringfold._native import Group

F32, I64, BF16 = 10, 7, 9
SUM = 0
# More than the size from which on tensors are read in place.
LARGE = (1 << 21) + 1000


def file_of(array: Any) -> int:
    """The inode of the shared memory in which an array lies; 0 if it lies elsewhere."""
    address = array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return int(line.split()[4]) if "/memfd:ringfold" in line else 0
    return 0


def is_mapped(inode: int) -> bool:
    return any(int(line.split()[4]) == inode for line in Path("/proc/self/maps").read_text().splitlines())


def is_open(inode: int) -> bool:
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.stat(f"/proc/self/fd/{fd}").st_ino == inode:
                return True
        except OSError:
            continue
    return False


def groups(world: int) -> list[Group]:
    place = _native.BootstrapListener()

    def connect(rank: int) -> Group:
        at = place if rank == 0 else place.announcement
        return Group.connect(
            rank=rank,
            world=world,
            at=at,
            media="shared",
            timeout=DEADLINE,
            connect_timeout=DEADLINE,
            name="g",
        )

    return together(*(lambda rank=rank: connect(rank) for rank in range(world)))


def all_reduce(group: Group, address: int, nbytes: int, dtype: int) -> None:
    span = (address, nbytes)
    group.run("all_reduce", dtype, SUM, -1, None, None, [span], [span], None)


def makers() -> list[Callable[[Any], Any]]:
    """Functions that make an array or a tensor of a shape."""
    found: list[Callable[[Any], Any]] = []
    try:
        import numpy

        found.append(lambda shape: ringfold.empty(shape, numpy.float32))
    except ImportError:
        pass
    try:
        import torch
        from ringfold.torch import empty

        found.append(lambda shape: empty(shape, torch.float32))
    except ImportError:
        pass
    if not found:
        pytest.skip("neither numpy nor torch is installed")
    return found


@pytest.mark.parametrize("shape", [7, (), (3, 4), [2, 0, 5], 0, (1, 2, 3, 4), 1 << 20])
def test_it_has_the_shape_and_is_zeroed(shape: Any) -> None:
    for make in makers():
        array = make(shape)
        expected = (shape,) if isinstance(shape, int) else tuple(shape)
        assert tuple(array.shape) == expected
        assert not array.any()
        if array.size if isinstance(array.size, int) else array.numel():
            array[...] = 2
            assert (array == 2).all()


def test_the_memory_lives_as_long_as_an_array_or_view_of_it() -> None:
    for make in makers():
        array = make((100, 100))
        view = array[3:, 5]
        inode = file_of(array)
        assert inode and file_of(view) == inode and is_open(inode)
        array[...] = 1
        del array
        gc.collect()
        assert is_mapped(inode) and is_open(inode)
        view[:] = 5
        assert view.sum() == 5 * 97
        del view
        gc.collect()
        assert not is_mapped(inode) and not is_open(inode)


def test_copies_and_pickled_arrays_are_ordinary_ones() -> None:
    for make in makers():
        array = make(1000)
        array[:] = 3
        for other in (pickle.loads(pickle.dumps(array)), copy.deepcopy(array), array + 0):
            assert (other == 3).all() and not file_of(other)
            other[:] = 4
        assert (array == 3).all() and file_of(array)


def test_invalid_arguments_are_named() -> None:
    for make in makers():
        with pytest.raises(ValueError, match=r"invalid shape \[3, -1\]: a dimension is negative"):
            make((3, -1))
        with pytest.raises(ValueError, match="must be whole numbers"):
            make((2.5,))
        with pytest.raises(MemoryError, match="bytes of shared memory are wanted"):
            make(1 << 50)
        with pytest.raises(MemoryError, match="more than any machine has"):
            make((1 << 40, 1 << 40))
    with pytest.raises(OverflowError):
        _native.SharedBuffer(-1)


def test_arrays_have_the_requested_types() -> None:
    numpy = pytest.importorskip("numpy")
    assert ringfold.empty(3).dtype == numpy.float64
    for kind in ("float16", "int8", "complex128", numpy.uint16, ">i4", "S5"):
        assert ringfold.empty((2, 3), dtype=kind).dtype == numpy.dtype(kind)
    with pytest.raises(ValueError, match="Python objects"):
        ringfold.empty(3, dtype=object)
    assert ringfold.empty(5, "i8").flags.writeable


def test_tensors_have_the_requested_types() -> None:
    torch = pytest.importorskip("torch")
    from ringfold.torch import empty

    assert empty(3).dtype == torch.get_default_dtype()
    for kind in (torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        tensor = empty((2, 3), dtype=kind)
        assert tensor.dtype == kind and tensor.is_contiguous() and not tensor.requires_grad


def test_ranks_read_large_arrays_in_place_and_get_the_same_results() -> None:
    numpy = pytest.importorskip("numpy")
    ranks = groups(3)

    def play(group: Group) -> list[Any]:
        results = []
        for dtype, kind in ((F32, "f4"), (I64, "i8")):
            values = numpy.arange(LARGE // 4) % 1000 * (group.rank + 1)
            shared, own = ringfold.empty(len(values), kind), numpy.empty(len(values), kind)
            shared[:] = own[:] = values
            all_reduce(group, own.ctypes.data, own.nbytes, dtype)
            before = group.shared_collectives
            all_reduce(group, shared.ctypes.data, shared.nbytes, dtype)
            assert group.shared_collectives == before + 1
            assert shared.tobytes() == own.tobytes()
            # A view that begins elsewhere, and one rank without shared memory.
            part = shared[len(values) // 20 :]
            all_reduce(group, part.ctypes.data, part.nbytes, dtype)
            mixed = own if group.rank == 1 else shared
            all_reduce(group, mixed.ctypes.data, mixed.nbytes, dtype)
            results.append((group.shared_collectives, float(mixed.sum()) > 0))
        return results

    assert together(*(lambda group=group: play(group) for group in ranks)) == [[(2, True), (4, True)]] * 3


def test_tensors_of_bfloat16_are_read_in_place() -> None:
    torch = pytest.importorskip("torch")
    from ringfold.torch import empty

    ranks = groups(2)

    def play(group: Group) -> bytes:
        shared, own = empty(LARGE, torch.bfloat16), torch.empty(LARGE, dtype=torch.bfloat16)
        values = torch.arange(LARGE) % 251 * 0.37 * (group.rank + 1)
        for tensor in (shared, own):
            tensor.copy_(values)
            all_reduce(group, tensor.data_ptr(), tensor.nbytes, BF16)
        assert torch.equal(shared, own)
        assert group.shared_collectives == 1
        return bytes(shared.view(torch.uint8).tolist()[:1000])

    assert len(set(together(*(lambda group=group: play(group) for group in ranks)))) == 1


FORKING = """
import gc, os, pathlib, numpy, ringfold
array = ringfold.empty(1000)
array[:] = 1
child = os.fork()
if not child:
    array[7] = 5                       # the parent sees it
    own = ringfold.empty(10)           # a child may have arrays of its own
    own[:] = 3
    del array, own
    gc.collect()
    assert "/memfd:ringfold" not in pathlib.Path("/proc/self/maps").read_text()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert array[7] == 5 and array.sum() == 1004, "the child's end does not free the parent's array"
other = ringfold.empty(10)
del array
gc.collect()
assert pathlib.Path("/proc/self/maps").read_text().count("/memfd:ringfold") == 1
print("both go on")
"""


def test_a_forked_child_shares_the_array_and_does_not_free_it(spawn: Spawn) -> None:
    pytest.importorskip("numpy")
    assert "both go on" in spawn(FORKING).succeed(DEADLINE)


def test_without_numpy_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match=r"needs numpy.*ringfold\.torch\.empty"):
        ringfold.empty(3)
