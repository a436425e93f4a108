import torch
import torchcomms

# Create a communicator
device = torch.device("cuda:0")
comm = torchcomms.new_comm("ncclx", device)

rank = comm.get_rank()
world_size = comm.get_size()

# Create tensors
tensor = torch.ones(10, device=device) * rank

# Capture communication operations in a CUDA graph
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    # Operations captured in graph mode
    work = comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, async_op=True)
    # Note: work.wait() should not be called inside graph capture

# Replay the graph multiple times for optimized performance
for _ in range(10):
    graph.replay()
    # Synchronize after replay to ensure completion
    torch.cuda.current_stream().synchronize()

# Finalize the communicator
comm.finalize()
