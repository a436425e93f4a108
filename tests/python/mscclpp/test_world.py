"""The infrastructure of these tests."""

from __future__ import annotations

import time

import pytest
from world import World, rank


def sleep_for_ever_in_here() -> None:
    while rank() == 1:
        time.sleep(1)


def test_ranks_that_do_not_end_in_time_say_where_they_are(world: World) -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)rank 1:.*in sleep_for_ever_in_here"):
        world.run(2, sleep_for_ever_in_here, deadline=3)
    assert time.monotonic() - began < 30
