"""The native part of Ringfold, which `pccl` and `ringfold` stand on. Numbers are those of `pccl.h`."""

from collections.abc import Sequence
from typing import Protocol, final, type_check_only

from ringfold._error import GroupError

__all__ = [
    "__version__",
    "Communicator",
    "Group",
    "GroupWork",
    "Master",
    "MeetingPlace",
    "Tensor",
    "Work",
    "command",
    "has_cuda",
    "interpreter_ends",
    "start_log",
]

__version__: str

@type_check_only
class Order(Protocol):
    """What an all-reduce is asked to do."""

    @property
    def send(self) -> object: ...
    @property
    def recv(self) -> object: ...
    @property
    def op(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def dtype(self) -> int | None: ...
    @property
    def elements(self) -> int | None: ...
    @property
    def algorithm(self) -> int: ...
    @property
    def quantized(self) -> int: ...
    @property
    def weight(self) -> float | None: ...
    @property
    def deadline(self) -> float | None: ...

@final
class Tensor:
    """Where the bytes of a tensor lie, what they are, and what keeps them there."""

    def __new__(cls, object: object, name: str) -> Tensor: ...
    @staticmethod
    def at(address: int, count: int, dtype: int, device: int, keeper: object | None) -> Tensor: ...
    @property
    def dtype(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def address(self) -> int: ...

@final
class Work:
    """An operation that was launched."""

    def wait(self, timeout: float | None) -> tuple[int, str, bool, int, int, int] | None: ...
    def done(self) -> bool: ...

@final
class Communicator:
    """A peer's part in a run."""

    def __new__(
        cls,
        address: str,
        peer_group: int,
        streams: int,
        name: str | None,
        token: str | None,
        ports: tuple[int, int] | None,
        bind: str | None,
        advertise: Sequence[str],
        site: int,
        patience: float | None,
    ) -> Communicator: ...
    @property
    def name(self) -> str: ...
    def connect(self) -> None: ...
    def update_topology(self) -> None: ...
    def optimize_topology(self) -> None: ...
    def are_peers_pending(self) -> bool: ...
    def attribute(self, number: int) -> int: ...
    def all_reduce(self, order: Order) -> tuple[int, int, int]: ...
    def all_reduce_async(self, order: Order) -> Work: ...
    def all_reduce_many(self, orders: Sequence[Order], in_flight_max: int) -> tuple[int, int, int]: ...
    def sync_shared_state(
        self, revision: int, entries: Sequence[tuple[str, Tensor, bool]], strategy: int
    ) -> tuple[int, int, int]: ...
    def leave(self) -> None: ...

@final
class Master:
    """A master, which serves from a thread of its own."""

    def __new__(cls, address: str, token: str | None) -> Master: ...
    def run(self) -> None: ...
    def addresses(self) -> list[str]: ...
    def interrupt(self) -> None: ...
    def wait(self) -> None: ...

@type_check_only
class Notice(Protocol):
    """Where rank 0's announcement is left for the others: a key of a store, and the like."""

    def post(self, text: str, /) -> None: ...
    def read(self) -> str | None: ...
    def withdraw(self) -> None: ...
    def describe(self) -> str: ...

@final
class MeetingPlace:
    """A door where rank 0 can be met, open until it is let go of."""

    def __new__(cls) -> MeetingPlace: ...
    @property
    def announcement(self) -> str: ...

@final
class Group:
    """A rank's part in a group of fixed ranks.

    Buffers are (address, bytes). Numbers of ``dtype`` and ``reduce`` are those of the engine's element types and reduce
    operations; ``peer`` is the root, source or destination.
    """

    @staticmethod
    def connect(
        *,
        rank: int,
        world: int,
        name: str,
        at: MeetingPlace | str | Notice | None,
        timeout: float,
        patience: float,
        restores: bool = False,
        media: str = "auto",
    ) -> Group: ...
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def members(self) -> list[str]: ...
    @property
    def is_shared(self) -> bool: ...
    def run(
        self,
        op: str,
        dtype: int,
        reduce: int,
        peer: int,
        counts: list[int] | None,
        others: list[int] | None,
        inputs: list[tuple[int, int]],
        outputs: list[tuple[int, int]],
        timeout: float | None,
    ) -> None: ...
    def submit(
        self,
        op: str,
        dtype: int,
        reduce: int,
        peer: int,
        counts: list[int] | None,
        others: list[int] | None,
        inputs: list[tuple[int, int]],
        outputs: list[tuple[int, int]],
        timeout: float | None,
        keep: object,
    ) -> GroupWork: ...
    def set_timeout(self, seconds: float) -> None: ...
    def abort(self) -> None: ...
    def failure(self) -> GroupError | None: ...
    def retire(self) -> None: ...

@final
class GroupWork:
    """An operation of a group that was begun."""

    def wait(self, timeout: float | None = None) -> bool: ...
    def done(self) -> bool: ...

def command(name: str, arguments: Sequence[str], again: Sequence[str]) -> int: ...
def has_cuda() -> bool: ...
def interpreter_ends() -> None: ...
def start_log() -> None: ...
