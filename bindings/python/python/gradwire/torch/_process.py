"""The client of the process, for scripts that do not handle clients themselves: `init` creates it. Programs with their own
client pass it as `client=…` and do not need this module."""

from __future__ import annotations

from typing import Any

from .._process import ProcessClient
from . import _torchrun

process_client = ProcessClient("gradwire.torch")
initialized, client_or_default = process_client.initialized, process_client.client_or_default
rank, size, local_rank, local_size = process_client.rank, process_client.size, process_client.local_rank, process_client.local_size


def init(lazy: bool = True, **settings: Any) -> None:
    """Joins the cluster, as `gradwire.connect` does, and makes the client the client of the process. A process that torchrun has
    started has the rank that torchrun gave it. If torchrun's processes are on one host and no scheduler listens there, rank 0 starts
    a cluster. A second call does nothing."""
    process_client.join(lambda: {**_torchrun.settings(settings), **settings})


def shutdown() -> None:
    """Leaves the cluster. If this process has started it, waits until the other workers have left, and ends it. `init` may be called
    again afterwards."""
    if process_client.leave():
        _torchrun.end()
