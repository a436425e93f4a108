import datetime
import torch
import torchcomms

# Create a communicator with custom options
device = torch.device("cuda:0")
comm = torchcomms.new_comm(
    "ncclx",
    device,
    # REPAIR: torch.timedelta does not exist.
    timeout=datetime.timedelta(seconds=60),
    abort_process_on_timeout_or_error=False,
    hints={
        "torchcomm::ncclx::high_priority_stream": "true",
        "backend_option": "value"
    },
)

# ...
comm.finalize()
