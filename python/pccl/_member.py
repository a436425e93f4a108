"""The members of a peer group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a peer group: its id and name, and whether it is this peer."""

    peer: str
    name: str
    is_self: bool
