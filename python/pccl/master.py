"""``python -m pccl.master`` is the command ``pccl_master``: a master that runs until SIGINT or SIGTERM."""

from ringfold._cli import pccl_master

if __name__ == "__main__":
    pccl_master()
