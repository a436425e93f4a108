"""A group of ranks: the usual way to begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from mscclpp._bootstrap import MEETING_SECONDS, TcpBootstrap, UniqueId
from mscclpp._channel import BasePortChannel, MemoryChannel, PortChannel
from mscclpp._communicator import Communicator
from mscclpp._connection import Connection
from mscclpp._device import EndpointConfig
from mscclpp._env import env
from mscclpp._errors import BaseError, Error, ErrorCode, invalid
from mscclpp._memory import RegisteredMemory
from mscclpp._proxy import ProxyService
from mscclpp._semaphore import Host2DeviceSemaphore, MemoryDevice2DeviceSemaphore, Semaphore
from mscclpp._span import span_of
from mscclpp._transport import Transport, TransportFlags

if TYPE_CHECKING:
    from mscclpp._collectives import Collectives

__all__ = ["CommGroup"]

T = TypeVar("T")
Connections = Mapping[int, Connection]
Endpoint = Transport | EndpointConfig


class CommGroup:
    """This process's part in a group of ranks, which all make it at the same time.

        group = CommGroup(MPI.COMM_WORLD)                                          # of mpi4py
        group = CommGroup(torch_group=torch.distributed.group.WORLD)
        group = CommGroup(interfaceIpPortTrio="eth0:10.0.0.1:50000", rank=rank, size=size)

    A string in the second place is the trio, as it once was: ``CommGroup(None, trio, rank, size)``.
    """

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: Any = None,
        interfaceIpPortTrio: str | int = "",  # noqa: N803
        rank: int | None = None,
        size: int | None = None,
        *,
        timeout_sec: float = MEETING_SECONDS,
    ) -> None:
        if isinstance(torch_group, str):
            # The old order: mpi_comm, trio, rank, size.
            old_rank = interfaceIpPortTrio
            torch_group, interfaceIpPortTrio = None, torch_group
            if not isinstance(old_rank, str):
                rank, size = old_rank, size if rank is None else rank
        trio = str(interfaceIpPortTrio)
        if mpi_comm is not None:
            rank, size = int(mpi_comm.rank), int(mpi_comm.size)
            give: Callable[[Any], Any] = lambda text: mpi_comm.bcast(text, 0)  # noqa: E731
        elif torch_group is not None:
            rank, size, give = _torch(torch_group)
        else:
            trio = trio or env().comm_id
            if rank is None or size is None or not trio:
                raise invalid(
                    "a CommGroup needs mpi_comm, torch_group, or interfaceIpPortTrio with rank and size"
                )
        # numpy's numbers, too.
        rank, size = int(rank), int(size)
        self.bootstrap = TcpBootstrap.create(rank, size)
        self.bootstrap.initialize(trio or _agreed(self.bootstrap, give), timeout_sec)
        self.communicator = Communicator(self.bootstrap)
        self.my_rank: int = rank
        self.nranks: int = size
        self.nranks_per_node: int = self.bootstrap.get_n_ranks_per_node()

    def barrier(self) -> None:
        """Waits until all ranks are here. Raises if a wait in a kernel ended badly, or the communicator is over."""
        self.communicator.check()
        self.bootstrap.barrier()

    def send(self, tensor: Any, peer: int, tag: int = 0) -> None:
        """Sends an array of the host to a rank, which receives one of the same size."""
        self.bootstrap.send(tensor, peer, tag)

    def recv(self, tensor: Any, peer: int, tag: int = 0) -> None:
        """Waits for what a rank sends."""
        self.bootstrap.recv(tensor, peer, tag)

    def my_ib_device(self, local_rank: int) -> Transport:
        """The InfiniBand device of a rank of this host."""
        if not 0 <= local_rank < 8:
            raise invalid(f"there is no IB{local_rank}: they are IB0 to IB7")
        return Transport[f"IB{local_rank}"]

    # --- connections and memory ------------------------------------------------------------------------------------

    def make_connection(
        self, all_ranks: Iterable[int], endpoints: Endpoint | Mapping[int, Endpoint]
    ) -> dict[int, Connection]:
        """Connects with some ranks, which all do the same: by a transport, or one for each."""
        waiting = {}
        for rank in all_ranks:
            if isinstance(endpoints, Mapping) and rank not in endpoints:
                raise invalid(f"no endpoint is given for rank {rank}")
            endpoint = endpoints[rank] if isinstance(endpoints, Mapping) else endpoints
            waiting[rank] = self.communicator.connect(endpoint, rank)
        return {rank: future.get() for rank, future in waiting.items()}

    def register_local_memory(self, tensor: Any, connections: Connections) -> RegisteredMemory:
        """Lays a tensor open for those connections. A registered memory is taken as it is."""
        if isinstance(tensor, RegisteredMemory):
            return tensor
        transports = TransportFlags(*(connection.transport() for connection in connections.values()))
        where = span_of(tensor)
        return self.communicator.register_memory(where.address, where.nbytes, transports, keep=where.keep)

    def register_tensor_with_connections(
        self, tensor: Any, connections: Connections
    ) -> dict[int, RegisteredMemory]:
        """Lays a tensor open, and learns of those of the ranks at the other ends. This rank's own is among them."""
        own = self.register_local_memory(tensor, connections)
        waiting = {}
        for rank in connections:
            self.communicator.send_memory(own, rank)
            waiting[rank] = self.communicator.recv_memory(rank)
        return {self.my_rank: own, **{rank: future.get() for rank, future in waiting.items()}}

    def register_memory_with_connections(
        self, memory: RegisteredMemory, connections: Connections
    ) -> dict[int, RegisteredMemory]:
        """The same for memory that is registered already."""
        return self.register_tensor_with_connections(memory, connections)

    # --- semaphores ------------------------------------------------------------------------------------------------

    def make_semaphores(self, connections: Connections) -> dict[int, Semaphore]:
        """A semaphore at each end of the connections."""
        waiting = {
            rank: self.communicator.build_semaphore(connection, rank)
            for rank, connection in connections.items()
        }
        return {rank: future.get() for rank, future in waiting.items()}

    def make_semaphore(
        self, connections: Connections, semaphore_type: Callable[[Semaphore], T] | None = None
    ) -> dict[int, T] | dict[int, Semaphore]:
        """Old: :meth:`make_semaphores`, each as an object of a class."""
        made = self.make_semaphores(connections)
        if semaphore_type is None:
            return made
        return {rank: semaphore_type(semaphore) for rank, semaphore in made.items()}

    # --- channels that kernels write through -----------------------------------------------------------------------

    def make_memory_channels(self, tensor: Any, connections: Connections) -> dict[int, MemoryChannel]:
        """Channels from this rank's tensor to those of the others."""
        semaphores = self.make_semaphores(connections)
        memories = self.register_tensor_with_connections(tensor, connections)
        own = memories[self.my_rank]
        return {
            rank: MemoryChannel(MemoryDevice2DeviceSemaphore(semaphores[rank]), memories[rank], own)
            for rank in connections
        }

    def make_memory_channels_with_scratch(
        self, tensor: Any, scratch: Any, connections: Connections
    ) -> dict[int, MemoryChannel]:
        """Channels from this rank's tensor to the others' scratch memories; packets come into this rank's own."""
        semaphores = self.make_semaphores(connections)
        own = self.register_local_memory(tensor, connections)
        scratches = self.register_tensor_with_connections(scratch, connections)
        packets = scratches[self.my_rank]
        return {
            rank: MemoryChannel(MemoryDevice2DeviceSemaphore(semaphores[rank]), scratches[rank], own, packets)
            for rank in connections
        }

    # --- channels by a proxy ---------------------------------------------------------------------------------------

    def make_port_channels(
        self, proxy_service: ProxyService, tensor: Any, connections: Connections
    ) -> dict[int, PortChannel]:
        """Channels by a proxy from this rank's tensor to those of the others."""
        semaphores = self.make_semaphores(connections)
        memories = self.register_memory_with_proxy(proxy_service, tensor, connections)
        own = memories[self.my_rank]
        return {
            rank: proxy_service.port_channel(
                proxy_service.add_semaphore(Host2DeviceSemaphore(semaphores[rank])), memories[rank], own
            )
            for rank in connections
        }

    def make_port_channels_with_scratch(
        self, proxy_service: ProxyService, tensor: Any, scratch: Any, connections: Connections
    ) -> dict[int, PortChannel]:
        """Channels by a proxy from this rank's tensor to the others' scratch memories."""
        semaphores = self.make_semaphores(connections)
        own = proxy_service.add_memory(self.register_local_memory(tensor, connections))
        scratches = self.register_tensor_with_connections(scratch, connections)
        # The others write it, though no channel of this rank does.
        proxy_service.keep(scratches[self.my_rank])
        return {
            rank: proxy_service.port_channel(
                proxy_service.add_semaphore(Host2DeviceSemaphore(semaphores[rank])),
                proxy_service.add_memory(scratches[rank]),
                own,
            )
            for rank in connections
        }

    def register_semaphore_with_proxy(
        self, proxy_service: ProxyService, connections: Connections
    ) -> dict[int, BasePortChannel]:
        """Channels by a proxy whose memories are named at each call."""
        semaphores = self.make_semaphores(connections)
        return {
            rank: proxy_service.base_port_channel(proxy_service.add_semaphore(semaphore))
            for rank, semaphore in semaphores.items()
        }

    def register_memory_with_proxy(
        self, proxy_service: ProxyService, tensor: Any, connections: Connections
    ) -> dict[int, int]:
        """Makes a tensor and those of the others known to a proxy: the id of each rank's, this one's among them."""
        memories = self.register_tensor_with_connections(tensor, connections)
        return {rank: proxy_service.add_memory(memory) for rank, memory in memories.items()}

    # Old names.
    make_proxy_channels = make_port_channels
    make_proxy_channels_with_scratch = make_port_channels_with_scratch
    make_sm_channels = make_memory_channels
    make_sm_channels_with_scratch = make_memory_channels_with_scratch

    # --- collectives -----------------------------------------------------------------------------------------------

    def collectives(self, device: int | None = None) -> Collectives:
        """Collectives on GPUs of this host, on streams. All ranks call it; see :class:`mscclpp.Collectives`."""
        from mscclpp._collectives import Collectives

        return Collectives(self, device)


def _agreed(bootstrap: TcpBootstrap, give: Callable[[Any], Any]) -> UniqueId:
    """The unique id that rank 0 makes and gives to all. If it can't, all are told."""
    made: UniqueId | BaseError | None = None
    if bootstrap.get_rank() == 0:
        try:
            made = bootstrap.create_unique_id()
        except BaseError as error:
            made = error
    # Rank 0 keeps its own: the open place does not travel.
    given = give(made)
    if isinstance(given, BaseError):
        raise Error(ErrorCode.RemoteError, f"rank 0 can't open a place to meet: {given}")
    return made if isinstance(made, UniqueId) else given


def _torch(group: Any) -> tuple[int, int, Callable[[Any], Any]]:
    """Rank and size of a torch group, and how its first rank gives something to all."""
    import torch.distributed as dist

    def give(made: Any) -> Any:
        one = [made]
        dist.broadcast_object_list(one, src=dist.get_global_rank(group, 0), group=group)
        return one[0]

    return dist.get_rank(group), dist.get_world_size(group), give
