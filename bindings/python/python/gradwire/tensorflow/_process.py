"""The client of the process, for scripts that do not handle clients themselves: `init` creates it. Programs with their own
client pass it as `client=…` and do not need this module. It must not import TensorFlow."""

from __future__ import annotations

from typing import Any

from .._native import tensorflow_forget
from .._process import ProcessClient

process_client = ProcessClient("gradwire.tensorflow", changed=tensorflow_forget)
initialized, client_or_default = process_client.initialized, process_client.client_or_default
rank, size, local_rank, local_size = process_client.rank, process_client.size, process_client.local_rank, process_client.local_size


def init(**settings: Any) -> None:
    """Joins the cluster, as `gradwire.connect` does, and makes the client the client of the process. A second call does nothing."""
    process_client.join(lambda: settings)


def shutdown() -> None:
    """Leaves the cluster. `init` may be called again afterwards."""
    process_client.leave()
