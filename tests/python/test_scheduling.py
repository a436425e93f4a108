"""The names of tests say which of them run in the same worker."""

from __future__ import annotations

from scheduling import group_of


def test_tests_are_grouped_by_module_or_by_the_id_of_their_last_parameter() -> None:
    matrix = "tests/python/torchcomms/test_matrix.py::test_every_operation"
    assert (
        group_of(f"{matrix}[moves-@3 ranks]")
        == group_of(f"{matrix}[sums-@3 ranks]")
        == "test_matrix.py@3 ranks"
    )
    assert group_of(f"{matrix}[moves-@2 ranks over TCP]") == "test_matrix.py@2 ranks over TCP"
    assert group_of("tests/python/test_install.py::test_a[b]") == group_of(
        "tests/python/test_install.py::test_c"
    )
    for single in (
        "tests/python/test_api.py::test_a",
        "test_api.py::test_a[x@y-z]",
        "test_api.py::test_a[b]",
    ):
        assert group_of(single) == single
