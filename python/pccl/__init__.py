"""Fault-tolerant collectives.

A *master* coordinates *peers*. A peer connects, accepts waiting peers with ``update_topology``, synchronises its state
with ``sync_shared_state``, and reduces tensors with ``all_reduce``. If a peer dies, the operation fails on all peers, and
the remaining peers retry it::

    import numpy, pccl

    comm = pccl.Communicator("10.0.0.7:48148")
    comm.connect()
    while comm.get_attribute(pccl.Attribute.PEER_GROUP_WORLD_SIZE) < 2:
        comm.update_topology()
    gradient = numpy.ones(1000, numpy.float32)
    while True:
        try:
            comm.all_reduce(gradient, gradient, op=pccl.ReduceOp.AVG)
            break
        except pccl.PCCLError as error:
            if not error.is_retryable or comm.world_size < 2:
                raise

Start a master with the command ``pccl_master`` (or ``python -m pccl.master``), or with :class:`MasterNode`. ``ringfold.Run``
is a training loop on top of this API. ``Result`` lists the results of calls; each failure has its own subclass of
``PCCLError``, such as ``pccl.UpdateTopologyFailed``.

numpy and torch are optional; either is enough. ``PCCL_LOG_LEVEL`` (TRACE, DEBUG, INFO, WARN, ERROR, OFF) is the level of the
log on standard error.
"""

from pccl import cuda
from pccl._communicator import AsyncReduceHandle, Communicator
from pccl._descriptors import (
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
)
from pccl._enums import (
    Attribute,
    DataType,
    DistributionHint,
    QuantizationAlgorithm,
    ReduceOp,
    SharedStateSyncStrategy,
)
from pccl._enums import DeviceType as DeviceType
from pccl._master import MasterNode
from pccl._member import GroupMember as GroupMember
from pccl._tensors import SharedState, SharedStateSyncInfo, TensorInfo
from pccl._traffic import PeerTraffic as PeerTraffic
from pccl._traffic import Traffic as Traffic
from pccl._traffic import TrafficReport as TrafficReport
from ringfold._error import InternalError as InternalError
from ringfold._error import InvalidArgument as InvalidArgument
from ringfold._error import InvalidUsage as InvalidUsage
from ringfold._error import MasterConnectionFailed as MasterConnectionFailed
from ringfold._error import NoSharedStateAvailable as NoSharedStateAvailable
from ringfold._error import NotInitialized as NotInitialized
from ringfold._error import OperationTimedOut as OperationTimedOut
from ringfold._error import OptimizeTopologyFailed as OptimizeTopologyFailed
from ringfold._error import PCCLError
from ringfold._error import PendingAsyncOps as PendingAsyncOps
from ringfold._error import RankConnectionFailed as RankConnectionFailed
from ringfold._error import RankConnectionLost as RankConnectionLost
from ringfold._error import RemoteError as RemoteError
from ringfold._error import Result as Result
from ringfold._error import SharedStateSyncFailed as SharedStateSyncFailed
from ringfold._error import TooFewPeers as TooFewPeers
from ringfold._error import TopologyOptimizationFailed as TopologyOptimizationFailed
from ringfold._error import UpdateTopologyFailed as UpdateTopologyFailed
from ringfold._native import __version__ as __version__
from ringfold._native import start_log

__all__ = [
    "AsyncReduceHandle",
    "Attribute",
    "Communicator",
    "DataType",
    "DistributionHint",
    "MasterNode",
    "PCCLError",
    "QuantizationAlgorithm",
    "QuantizationOptions",
    "ReduceDescriptor",
    "ReduceInfo",
    "ReduceOp",
    "ReduceOpDescriptor",
    "ReduceOperandDescriptor",
    "SharedState",
    "SharedStateSyncInfo",
    "SharedStateSyncStrategy",
    "TensorInfo",
    "cuda",
]

start_log()
del start_log
