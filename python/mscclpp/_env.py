"""Settings from the environment variables ``MSCCLPP_<NAME>``."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cache


@dataclass(frozen=True)
class Env:
    """The settings of this process, read once. Each is the variable ``MSCCLPP_`` and its name in capitals.

    Only ``cache_dir``, ``comm_id``, ``hostid`` and ``cuda_ipc_through_host`` have an effect.
    """

    debug: str = ""
    debug_subsys: str = ""
    debug_file: str = ""
    hca_devices: str = ""
    hostid: str = ""
    socket_family: str = ""
    socket_ifname: str = ""
    comm_id: str = ""
    ibv_mode: str = ""
    cache_dir: str = ""
    npkit_dump_dir: str = ""
    cuda_ipc_use_default_stream: bool = False
    cuda_ipc_through_host: bool = False
    ib_gid_index: int = 0


@cache
def env() -> Env:
    """The settings of this process, always the same immutable object."""
    given: dict[str, str | bool | int] = {}
    for field in fields(Env):
        text = os.environ.get(f"MSCCLPP_{field.name.upper()}")
        if text is None:
            continue
        if isinstance(field.default, bool):
            given[field.name] = text.strip().lower() in ("1", "true", "yes", "on")
        elif isinstance(field.default, int):
            try:
                given[field.name] = int(text)
            except ValueError:
                raise ValueError(f"invalid MSCCLPP_{field.name.upper()}={text!r}: must be a number") from None
        else:
            given[field.name] = text
    return Env(**given)  # type: ignore[arg-type]
