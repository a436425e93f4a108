"""Results of calls, and the exception that carries one."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Result(IntEnum):
    """How a call ended. The values are those of ``pcclResult_t`` in ``pccl.h``."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    """The library was not made ready; importing ``pccl`` does that."""
    INTERNAL_ERROR = 2
    """The operating system refused something, or a bug."""
    INVALID_ARGUMENT = 3
    """An argument is invalid, or peers asked for different things. Not retryable."""
    INVALID_USAGE = 4
    """The call can't be made now."""
    TOO_FEW_PEERS = 5
    """A collective needs two peers, and there is one."""
    MASTER_CONNECTION_FAILED = 6
    """The master can't be reached, or this peer is not part of the run any more."""
    RANK_CONNECTION_FAILED = 7
    """A peer can't be reached."""
    RANK_CONNECTION_LOST = 8
    """The operation was aborted for all peers of the group. Retry it: nothing was counted."""
    NO_SHARED_STATE_AVAILABLE = 9
    """Nobody has the shared state that all wait for."""
    PENDING_ASYNC_OPS = 10
    """Asynchronous operations have to be awaited first."""
    UPDATE_TOPOLOGY_FAILED = 11
    """The topology could not be updated. Retry."""
    TOPOLOGY_OPTIMIZATION_FAILED = 12
    """The topology could not be optimised. Retry."""
    OPTIMIZE_TOPOLOGY_FAILED = 12
    SHARED_STATE_SYNC_FAILED = 13
    """The shared state was rejected, or the vote on it failed."""
    REMOTE_ERROR = 14
    """Another peer failed. No call ends so at present."""
    SYSTEM_ERROR = 2


_RETRYABLE = frozenset(
    {
        Result.TOO_FEW_PEERS,
        Result.RANK_CONNECTION_LOST,
        Result.NO_SHARED_STATE_AVAILABLE,
        Result.UPDATE_TOPOLOGY_FAILED,
        Result.TOPOLOGY_OPTIMIZATION_FAILED,
        Result.SHARED_STATE_SYNC_FAILED,
    }
)


class PCCLError(Exception):
    """A call failed.

    ``result`` says how, as a :class:`Result`; the text begins with the result's name and says who was waited for, in
    which operation, and why it failed. Each result has a subclass, so that ``except`` can name it: an error with
    ``Result.UPDATE_TOPOLOGY_FAILED`` is a ``pccl.UpdateTopologyFailed``.

        >>> error = PCCLError(Result.RANK_CONNECTION_LOST, "peer b left")
        >>> error.result.name, error.is_retryable
        ('RANK_CONNECTION_LOST', True)
        >>> print(error)
        RANK_CONNECTION_LOST: peer b left
        >>> type(error).__name__
        'RankConnectionLost'
    """

    _of_result: ClassVar[dict[Result, type[PCCLError]]] = {}

    result: Result
    text: str
    is_retryable: bool
    """Whether the same call may succeed if it is made again on the same communicator. Not if peers disagree on it."""
    kind: str
    """What went wrong, in a word to decide by: ``"mismatch"``, ``"timeout"``, ``"peer-lost"`` and so on."""

    def __init_subclass__(cls, result: Result | None = None) -> None:
        super().__init_subclass__()
        if result is not None:
            cls._of_result[result] = cls
            # Users know it by this name, and tracebacks say it.
            cls.__module__ = "pccl"

    def __new__(cls, result: int, *_: object) -> PCCLError:
        """Makes an instance of the result's own class."""
        own = cls._of_result.get(Result(result), cls) if cls is PCCLError else cls
        return super().__new__(own)

    def __init__(self, result: int, text: str = "", is_retryable: bool | None = None, kind: str = "") -> None:
        self.result = Result(result)
        self.text = text
        self.is_retryable = self.result in _RETRYABLE if is_retryable is None else is_retryable
        self.kind = kind
        # All of them, so that it can be pickled.
        super().__init__(self.result, text, self.is_retryable, kind)

    def __str__(self) -> str:
        return f"{self.result.name}: {self.text}" if self.text else self.result.name

    @staticmethod
    def check(result: int, text: str = "") -> None:
        """Raises the error of this result, unless it is ``Result.SUCCESS``.

        >>> PCCLError.check(Result.SUCCESS)
        """
        if result != Result.SUCCESS:
            raise PCCLError(result, text)


class NotInitialized(PCCLError, result=Result.NOT_INITIALIZED):
    """The library was not made ready."""


class InternalError(PCCLError, result=Result.INTERNAL_ERROR):
    """The operating system refused something, or a bug."""


class InvalidArgument(PCCLError, result=Result.INVALID_ARGUMENT):
    """An argument is invalid."""


class InvalidUsage(PCCLError, result=Result.INVALID_USAGE):
    """The call is not possible now."""


class TooFewPeers(PCCLError, result=Result.TOO_FEW_PEERS):
    """A collective needs two peers, and there is one."""


class MasterConnectionFailed(PCCLError, result=Result.MASTER_CONNECTION_FAILED):
    """The master could not be reached, or this peer is no longer part of the run."""


class RankConnectionFailed(PCCLError, result=Result.RANK_CONNECTION_FAILED):
    """A peer could not be reached."""


class RankConnectionLost(PCCLError, result=Result.RANK_CONNECTION_LOST):
    """The operation was aborted for all peers of the group."""


class NoSharedStateAvailable(PCCLError, result=Result.NO_SHARED_STATE_AVAILABLE):
    """No peer has the shared state that all wait for."""


class PendingAsyncOps(PCCLError, result=Result.PENDING_ASYNC_OPS):
    """Asynchronous operations have to be awaited first."""


class UpdateTopologyFailed(PCCLError, result=Result.UPDATE_TOPOLOGY_FAILED):
    """The topology could not be updated. Retry."""


class TopologyOptimizationFailed(PCCLError, result=Result.TOPOLOGY_OPTIMIZATION_FAILED):
    """The topology could not be optimised. Retry."""


class SharedStateSyncFailed(PCCLError, result=Result.SHARED_STATE_SYNC_FAILED):
    """The shared state was rejected, or the vote on it failed."""


class RemoteError(PCCLError, result=Result.REMOTE_ERROR):
    """Another peer failed. Nothing raises it at present."""


OptimizeTopologyFailed = TopologyOptimizationFailed


class GroupError(RuntimeError):
    """An operation of a group of fixed ranks failed, or the group could not be formed. The text names the ranks.

    ``kind`` says how:

    - ``timeout``: ranks did not take part in time
    - ``lost``: a rank died, left, or can't be reached
    - ``mismatch``: ranks asked for different things
    - ``aborted``: a rank gave the group up
    - ``argument``: an argument can't be used, and nobody else was disturbed
    - ``left``: this rank has left the group
    - ``meeting``: the ranks did not find each other
    - ``system``: the operating system refused something, or a bug

        >>> error = GroupError("no answer in time from rank 1", "timeout")
        >>> error.kind
        'timeout'
        >>> print(error)
        no answer in time from rank 1
    """

    kind: str
    text: str

    def __init__(self, text: str, kind: str = "system") -> None:
        self.text = text
        self.kind = kind
        # Both, so that it can be pickled.
        super().__init__(text, kind)

    def __str__(self) -> str:
        return self.text


class PortError(RuntimeError):
    """Something on the way between two ports failed, or a call of CUDA's. The text says what, and who was waited for.

    ``kind`` says how:

    - ``cuda``: the CUDA driver refused; ``code`` is its number for that
    - ``argument``: an argument can't be used; a source that does not compile is one
    - ``lost``: the other side died, left, or can't be reached
    - ``timeout``: the other side did not do its part in time
    - ``aborted``: somebody gave the port up
    - ``system``: the operating system refused something, or a bug
    - ``unsupported``: this machine, device or build can't do that

        >>> error = PortError("no answer in time from rank 1", "timeout")
        >>> error.kind, error.code
        ('timeout', 0)
        >>> print(error)
        no answer in time from rank 1
    """

    kind: str
    text: str
    code: int
    """The number that the driver or the operating system gave, or 0."""

    def __init__(self, text: str, kind: str = "system", code: int = 0) -> None:
        self.text = text
        self.kind = kind
        self.code = code
        # All of them, so that it can be pickled.
        super().__init__(text, kind, code)

    def __str__(self) -> str:
        return self.text


# Users know them by this name, and tracebacks say it.
Result.__module__ = PCCLError.__module__ = "pccl"
