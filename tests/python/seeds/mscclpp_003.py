# REPAIR: os and List were not imported.
import os
from typing import List

from mpi4py import MPI
import cupy as cp

from mscclpp import (
    # REPAIR: it was not imported.
    ProxyChannel,
    ProxyService,
    Transport,
)
from mscclpp.utils import GpuBuffer
import mscclpp.comm as mscclpp_comm

def create_connection(group: mscclpp_comm.CommGroup, transport: str):
    remote_nghrs = list(range(group.nranks))
    remote_nghrs.remove(group.my_rank)
    if transport == "NVLink":
        tran = Transport.CudaIpc
    elif transport == "IB":
        tran = group.my_ib_device(group.my_rank % 8)
    else:
        assert False
    connections = group.make_connection(remote_nghrs, tran)
    return connections

from mscclpp.utils import KernelBuilder, pack

def launch_kernel(my_rank: int, nranks: int, simple_channels: List[ProxyChannel], memory: cp.ndarray):
    file_dir = os.path.dirname(os.path.abspath(__file__))
    # REPAIR: the kernel is called proxy_channel; test was asked for.
    kernel = KernelBuilder(file="test.cu", kernel_name="proxy_channel", file_dir=file_dir).get_compiled_kernel()
    params = b""
    first_arg = next(iter(simple_channels.values()))
    size_of_channels = len(first_arg.device_handle().raw)
    device_handles = []
    for rank in range(nranks):
        if rank == my_rank:
            device_handles.append(
                bytes(size_of_channels)
            )  # just zeros for semaphores that do not exist
        else:
            device_handles.append(simple_channels[rank].device_handle().raw)
    # keep a reference to the device handles so that they don't get garbage collected
    d_channels = cp.asarray(memoryview(b"".join(device_handles)), dtype=cp.uint8)
    params = pack(d_channels, my_rank, nranks, memory.size)

    nblocks = 1
    nthreads = 512
    kernel.launch_kernel(params, nblocks, nthreads, 0, None)

if __name__ == "__main__":
    # REPAIR: all ranks were on GPU 0.
    cp.cuda.Device(MPI.COMM_WORLD.rank % cp.cuda.runtime.getDeviceCount()).use()
    mscclpp_group = mscclpp_comm.CommGroup(MPI.COMM_WORLD)
    connections = create_connection(mscclpp_group, "NVLink")
    nelems = 1024
    # REPAIR: nelem.
    memory = GpuBuffer(nelems, dtype=cp.int32)
    proxy_service = ProxyService()
    # REPAIR: group.
    simple_channels = mscclpp_group.make_proxy_channels(proxy_service, memory, connections)
    proxy_service.start_proxy()
    mscclpp_group.barrier()
    launch_kernel(mscclpp_group.my_rank, mscclpp_group.nranks, simple_channels, memory)
    cp.cuda.runtime.deviceSynchronize()
    mscclpp_group.barrier()
    # REPAIR: the proxy was not stopped.
    proxy_service.stop_proxy()
