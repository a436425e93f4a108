"""CommGroup: the usual entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from mscclpp._bootstrap import CONNECT_SECONDS, TcpBootstrap, UniqueId
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
    """A group of ranks, which all make it at the same time.

        group = CommGroup(MPI.COMM_WORLD)                                          # of mpi4py
        group = CommGroup(torch_group=torch.distributed.group.WORLD)
        group = CommGroup(interfaceIpPortTrio="eth0:10.0.0.1:50000", rank=rank, size=size)

    The old order of arguments, ``CommGroup(None, trio, rank, size)``, works too.
    """

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: Any = None,
        interfaceIpPortTrio: str | int = "",  # noqa: N803
        rank: int | None = None,
        size: int | None = None,
        *,
        timeout_sec: float = CONNECT_SECONDS,
    ) -> None:
        if isinstance(torch_group, str):
            # The old order of arguments.
            old_rank = interfaceIpPortTrio
            torch_group, interfaceIpPortTrio = None, torch_group
            if not isinstance(old_rank, str):
                rank, size = old_rank, size if rank is None else rank
        trio = str(interfaceIpPortTrio)
        if mpi_comm is not None:
            rank, size = int(mpi_comm.rank), int(mpi_comm.size)
            broadcast: Callable[[Any], Any] = lambda text: mpi_comm.bcast(text, 0)  # noqa: E731
        elif torch_group is not None:
            rank, size, broadcast = _torch(torch_group)
        else:
            trio = trio or env().comm_id
            if rank is None or size is None or not trio:
                raise invalid(
                    "a CommGroup needs mpi_comm, torch_group, or interfaceIpPortTrio with rank and size"
                )
        # They may be numbers of numpy.
        rank, size = int(rank), int(size)
        self.bootstrap = TcpBootstrap.create(rank, size)
        self.bootstrap.initialize(trio or _shared_id(self.bootstrap, broadcast), timeout_sec)
        self.communicator = Communicator(self.bootstrap)
        self.my_rank: int = rank
        self.nranks: int = size
        self.nranks_per_node: int = self.bootstrap.get_n_ranks_per_node()

    def barrier(self) -> None:
        """Waits until all ranks have called it. Raises if the communicator has failed."""
        self.communicator.check()
        self.bootstrap.barrier()

    def send(self, tensor: Any, peer: int, tag: int = 0) -> None:
        """Sends an array in host memory to a rank, which receives one of the same size."""
        self.bootstrap.send(tensor, peer, tag)

    def recv(self, tensor: Any, peer: int, tag: int = 0) -> None:
        """Receives an array from a rank."""
        self.bootstrap.recv(tensor, peer, tag)

    def my_ib_device(self, local_rank: int) -> Transport:
        """The InfiniBand device of a rank of this host."""
        if not 0 <= local_rank < 8:
            raise invalid(f"unknown device IB{local_rank}: must be IB0 to IB7")
        return Transport[f"IB{local_rank}"]

    # --- connections and memory ------------------------------------------------------------------------------------

    def make_connection(
        self, all_ranks: Iterable[int], endpoints: Endpoint | Mapping[int, Endpoint]
    ) -> dict[int, Connection]:
        """Connects to some ranks, which make the same call. ``endpoints``: one transport for all, or one for each."""
        futures = {}
        for rank in all_ranks:
            if isinstance(endpoints, Mapping) and rank not in endpoints:
                raise invalid(f"no endpoint is given for rank {rank}")
            endpoint = endpoints[rank] if isinstance(endpoints, Mapping) else endpoints
            futures[rank] = self.communicator.connect(endpoint, rank)
        return {rank: future.get() for rank, future in futures.items()}

    def register_local_memory(self, tensor: Any, connections: Connections) -> RegisteredMemory:
        """Registers a tensor for the transports of these connections. A RegisteredMemory is returned as it is."""
        if isinstance(tensor, RegisteredMemory):
            return tensor
        transports = TransportFlags(*(connection.transport() for connection in connections.values()))
        where = span_of(tensor)
        return self.communicator.register_memory(where.address, where.nbytes, transports, keep=where.keep)

    def register_tensor_with_connections(
        self, tensor: Any, connections: Connections
    ) -> dict[int, RegisteredMemory]:
        """Registers a tensor, and exchanges it with the connected ranks. Returns all, including this rank's own."""
        own = self.register_local_memory(tensor, connections)
        futures = {}
        for rank in connections:
            self.communicator.send_memory(own, rank)
            futures[rank] = self.communicator.recv_memory(rank)
        return {self.my_rank: own, **{rank: future.get() for rank, future in futures.items()}}

    def register_memory_with_connections(
        self, memory: RegisteredMemory, connections: Connections
    ) -> dict[int, RegisteredMemory]:
        """The same for registered memory."""
        return self.register_tensor_with_connections(memory, connections)

    # --- semaphores ------------------------------------------------------------------------------------------------

    def make_semaphores(self, connections: Connections) -> dict[int, Semaphore]:
        """A semaphore for each connection."""
        futures = {
            rank: self.communicator.build_semaphore(connection, rank)
            for rank, connection in connections.items()
        }
        return {rank: future.get() for rank, future in futures.items()}

    def make_semaphore(
        self, connections: Connections, semaphore_type: Callable[[Semaphore], T] | None = None
    ) -> dict[int, T] | dict[int, Semaphore]:
        """Old: :meth:`make_semaphores`, wrapped in a class."""
        made = self.make_semaphores(connections)
        if semaphore_type is None:
            return made
        return {rank: semaphore_type(semaphore) for rank, semaphore in made.items()}

    # --- memory channels -------------------------------------------------------------------------------------------

    def make_memory_channels(self, tensor: Any, connections: Connections) -> dict[int, MemoryChannel]:
        """Memory channels from this rank's tensor to those of the others."""
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
        """Memory channels from this rank's tensor to the others' scratch memory; packets arrive in its own."""
        semaphores = self.make_semaphores(connections)
        own = self.register_local_memory(tensor, connections)
        scratches = self.register_tensor_with_connections(scratch, connections)
        packets = scratches[self.my_rank]
        return {
            rank: MemoryChannel(MemoryDevice2DeviceSemaphore(semaphores[rank]), scratches[rank], own, packets)
            for rank in connections
        }

    # --- port channels ---------------------------------------------------------------------------------------------

    def make_port_channels(
        self, proxy_service: ProxyService, tensor: Any, connections: Connections
    ) -> dict[int, PortChannel]:
        """Port channels from this rank's tensor to those of the others."""
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
        """Port channels from this rank's tensor to the others' scratch memory."""
        semaphores = self.make_semaphores(connections)
        own = proxy_service.add_memory(self.register_local_memory(tensor, connections))
        scratches = self.register_tensor_with_connections(scratch, connections)
        # The other ranks write it.
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
        """Port channels whose memories are named with each put."""
        semaphores = self.make_semaphores(connections)
        return {
            rank: proxy_service.base_port_channel(proxy_service.add_semaphore(semaphore))
            for rank, semaphore in semaphores.items()
        }

    def register_memory_with_proxy(
        self, proxy_service: ProxyService, tensor: Any, connections: Connections
    ) -> dict[int, int]:
        """Adds a tensor of each rank to a proxy; returns their ids, including this rank's own."""
        memories = self.register_tensor_with_connections(tensor, connections)
        return {rank: proxy_service.add_memory(memory) for rank, memory in memories.items()}

    # Old names.
    make_proxy_channels = make_port_channels
    make_proxy_channels_with_scratch = make_port_channels_with_scratch
    make_sm_channels = make_memory_channels
    make_sm_channels_with_scratch = make_memory_channels_with_scratch

    # --- collectives -----------------------------------------------------------------------------------------------

    def collectives(self, device: int | None = None) -> Collectives:
        """Collectives on the GPUs of this host; see :class:`mscclpp.Collectives`. All ranks call it."""
        from mscclpp._collectives import Collectives

        return Collectives(self, device)


def _shared_id(bootstrap: TcpBootstrap, broadcast: Callable[[Any], Any]) -> UniqueId:
    """The unique id that rank 0 makes and broadcasts. If it fails, all ranks raise."""
    made: UniqueId | BaseError | None = None
    if bootstrap.get_rank() == 0:
        try:
            made = bootstrap.create_unique_id()
        except BaseError as error:
            made = error
    # Rank 0 uses its own object, which has the listener.
    given = broadcast(made)
    if isinstance(given, BaseError):
        raise Error(ErrorCode.RemoteError, f"opening the listener of rank 0 failed: {given}")
    return made if isinstance(made, UniqueId) else given


def _torch(group: Any) -> tuple[int, int, Callable[[Any], Any]]:
    """Rank and size of a torch group, and a function that broadcasts from its first rank."""
    import torch.distributed as dist

    def broadcast(made: Any) -> Any:
        one = [made]
        dist.broadcast_object_list(one, src=dist.get_global_rank(group, 0), group=group)
        return one[0]

    return dist.get_rank(group), dist.get_world_size(group), broadcast
