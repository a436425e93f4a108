"""What the versions of torch can do, for tests that need it. A skipped test names the version."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
import torch.distributed as dist

THIS = f"torch {torch.__version__}"
VERSION = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])

checks_all_backends = pytest.mark.skipif(
    not hasattr(dist.Backend, "_ensure_backend_registered"),
    reason=f"{THIS} checks only its own backends in detail",
)
has_monitored_barriers = pytest.mark.skipif(
    "Backend.GLOO" in inspect.getsource(dist.monitored_barrier),
    reason=f"{THIS} has monitored barriers for gloo alone",
)
makes_groups_of_some_ranks = pytest.mark.skipif(
    VERSION < (2, 13),
    reason=f"{THIS} makes communicators only of all ranks of the world: new_group() of some of them waits for the others",
)

trains_by_the_switch = pytest.mark.skipif(
    VERSION < (2, 14),
    reason=f"with TORCH_DISTRIBUTED_USE_TORCHCOMMS, DDP of {THIS} asks a group named gloo for torch's own gloo",
)
mixes_devices = pytest.mark.skipif(
    VERSION < (2, 14), reason=f"{THIS} takes one backend in Python for a whole group"
)
exchanges_lists = pytest.mark.skipif(VERSION < (2, 14), reason=f"gloo of {THIS} has no all_to_all")
reads_lists = pytest.mark.skipif(
    VERSION < (2, 15),
    reason=f"the analyser of {THIS} looks only at the first tensor of a list, and takes other sizes for mistakes",
)


def skip_unreadable_traces(error: AssertionError) -> None:
    """Skips where torch's analyser of traces, before 2.15, does not know a backend's or an operation's name."""
    text = str(error)
    if VERSION < (2, 15) and ("name formatting error" in text or "is not a supported operation" in text):
        pytest.skip(f"the analyser of {THIS} does not read these traces: {text}")
