"""What the comparisons with gloo share: both systems in the same processes."""

import contextlib
import os

import torch
import torch.distributed as dist

import gradwire


@contextlib.contextmanager
def joined():
    """Joins the cluster, and a process group of gloo with the same ranks. Rank 0 prints what is compared."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    with gradwire.connect() as client:
        dist.init_process_group("gloo", rank=client.rank, world_size=client.workers)
        if client.rank == 0:
            print(f"{client.workers} workers, {client.transport}, {torch.get_num_threads()} threads of torch")
        # The group stays to the end of the process (torch 1.13 may wait for ever where DDP destroys one).
        yield client
