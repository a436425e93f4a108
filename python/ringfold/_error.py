"""Results of calls, and the exception that carries one."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Result(IntEnum):
    """The result of a call, with the values of ``pcclResult_t`` in ``pccl.h``."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    """The library is not initialised; importing ``pccl`` does that."""
    INTERNAL_ERROR = 2
    """An error of the operating system, or a bug."""
    INVALID_ARGUMENT = 3
    """An argument is invalid, or peers made different calls. Not retryable."""
    INVALID_USAGE = 4
    """The call is not possible now."""
    TOO_FEW_PEERS = 5
    """A collective needs at least two peers."""
    MASTER_CONNECTION_FAILED = 6
    """The master is unreachable, or this peer is no longer part of the run."""
    RANK_CONNECTION_FAILED = 7
    """A peer is unreachable."""
    RANK_CONNECTION_LOST = 8
    """The operation was aborted for all peers of the group. Retry it."""
    NO_SHARED_STATE_AVAILABLE = 9
    """No peer has the shared state."""
    PENDING_ASYNC_OPS = 10
    """Asynchronous operations must be awaited first."""
    UPDATE_TOPOLOGY_FAILED = 11
    """The topology update failed. Retry."""
    TOPOLOGY_OPTIMIZATION_FAILED = 12
    """The topology optimisation failed. Retry."""
    OPTIMIZE_TOPOLOGY_FAILED = 12
    SHARED_STATE_SYNC_FAILED = 13
    """The shared state was rejected, or the vote on it failed."""
    REMOTE_ERROR = 14
    """Another peer failed. Currently not returned."""
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

    ``result`` is a :class:`Result`. The text begins with its name and says which operation failed, why, and which peers were
    missing. Each result has a subclass for ``except``: an error with ``Result.UPDATE_TOPOLOGY_FAILED`` is a
    ``pccl.UpdateTopologyFailed``.

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
    """Whether a retry on the same communicator may succeed. False if peers made different calls."""
    kind: str
    """The cause in a word: ``"mismatch"``, ``"timeout"``, ``"peer-lost"`` and so on."""

    def __init_subclass__(cls, result: Result | None = None) -> None:
        super().__init_subclass__()
        if result is not None:
            cls._of_result[result] = cls
            # The public name, for tracebacks.
            cls.__module__ = "pccl"

    def __new__(
        cls, result: int, text: str = "", is_retryable: bool | None = None, kind: str = ""
    ) -> PCCLError:
        """Creates an instance of the result's subclass."""
        own = cls._of_result.get(Result(result), cls) if cls is PCCLError else cls
        return super().__new__(OperationTimedOut if own is RankConnectionLost and kind == "timeout" else own)

    def __init__(self, result: int, text: str = "", is_retryable: bool | None = None, kind: str = "") -> None:
        self.result = Result(result)
        self.text = text
        self.is_retryable = self.result in _RETRYABLE if is_retryable is None else is_retryable
        self.kind = kind
        # All arguments, for pickle.
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
    """The library is not initialised."""


class InternalError(PCCLError, result=Result.INTERNAL_ERROR):
    """An error of the operating system, or a bug."""


class InvalidArgument(PCCLError, result=Result.INVALID_ARGUMENT):
    """An argument is invalid."""


class InvalidUsage(PCCLError, result=Result.INVALID_USAGE):
    """The call is not possible now."""


class TooFewPeers(PCCLError, result=Result.TOO_FEW_PEERS):
    """A collective needs at least two peers."""


class MasterConnectionFailed(PCCLError, result=Result.MASTER_CONNECTION_FAILED):
    """The master is unreachable, or this peer is no longer part of the run."""


class RankConnectionFailed(PCCLError, result=Result.RANK_CONNECTION_FAILED):
    """A peer is unreachable."""


class RankConnectionLost(PCCLError, result=Result.RANK_CONNECTION_LOST):
    """The operation was aborted for all peers of the group."""


class OperationTimedOut(RankConnectionLost):
    """Peers did not take part in time; none of them was lost. Its result is that of :class:`RankConnectionLost`."""

    __module__ = "pccl"


class NoSharedStateAvailable(PCCLError, result=Result.NO_SHARED_STATE_AVAILABLE):
    """No peer has the shared state."""


class PendingAsyncOps(PCCLError, result=Result.PENDING_ASYNC_OPS):
    """Asynchronous operations must be awaited first."""


class UpdateTopologyFailed(PCCLError, result=Result.UPDATE_TOPOLOGY_FAILED):
    """The topology update failed. Retry."""


class TopologyOptimizationFailed(PCCLError, result=Result.TOPOLOGY_OPTIMIZATION_FAILED):
    """The topology optimisation failed. Retry."""


class SharedStateSyncFailed(PCCLError, result=Result.SHARED_STATE_SYNC_FAILED):
    """The shared state was rejected, or the vote on it failed."""


class RemoteError(PCCLError, result=Result.REMOTE_ERROR):
    """Another peer failed. Currently not raised."""


OptimizeTopologyFailed = TopologyOptimizationFailed


class GroupError(RuntimeError):
    """An operation of a fixed group failed, or the group could not connect. The text names the ranks.

    ``kind`` is the cause:

    - ``timeout``: ranks did not take part in time
    - ``lost``: a rank died, left, or is unreachable
    - ``mismatch``: ranks made different calls
    - ``aborted``: a rank aborted the group
    - ``argument``: an argument is invalid; other ranks are not affected
    - ``left``: this rank has left the group
    - ``bootstrap``: the ranks could not connect
    - ``system``: an error of the operating system, or a bug

        >>> error = GroupError("timed out waiting for rank 1", "timeout")
        >>> error.kind
        'timeout'
        >>> print(error)
        timed out waiting for rank 1
    """

    kind: str
    text: str

    def __init__(self, text: str, kind: str = "system") -> None:
        self.text = text
        self.kind = kind
        # All arguments, for pickle.
        super().__init__(text, kind)

    def __str__(self) -> str:
        return self.text


class PortError(RuntimeError):
    """A connection between two ports, or a CUDA call, failed. The text names the peer.

    ``kind`` is the cause:

    - ``cuda``: an error of the CUDA driver; ``code`` is its number
    - ``argument``: an argument is invalid, such as a source that does not compile
    - ``lost``: the other side died, left, or is unreachable
    - ``timeout``: the other side did not respond in time
    - ``aborted``: the port was aborted
    - ``system``: an error of the operating system, or a bug
    - ``unsupported``: this machine, device or build does not support the call

        >>> error = PortError("timed out waiting for rank 1", "timeout")
        >>> error.kind, error.code
        ('timeout', 0)
        >>> print(error)
        timed out waiting for rank 1
    """

    kind: str
    text: str
    code: int
    """The error number of the driver or the operating system, or 0."""

    def __init__(self, text: str, kind: str = "system", code: int = 0) -> None:
        self.text = text
        self.kind = kind
        self.code = code
        # All arguments, for pickle.
        super().__init__(text, kind, code)

    def __str__(self) -> str:
        return self.text


# The public name, for tracebacks.
Result.__module__ = PCCLError.__module__ = "pccl"
