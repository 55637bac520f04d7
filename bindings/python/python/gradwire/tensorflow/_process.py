"""The client of the process, for scripts that do not handle clients themselves: `init` creates it. Programs with their own
client pass it as `client=…` and do not need this module. It must not import TensorFlow."""

from __future__ import annotations

import threading
from typing import Any

from .._native import tensorflow_forget
from .._place import Place, known, place
from ..client import Client, connect
from ..errors import InputError

_lock = threading.Lock()
_client: Client | None = None
_local: Place | None = None


def init(**settings: Any) -> None:
    """Joins the cluster, as `gradwire.connect` does, and makes the client the client of the process. A second call does nothing."""
    global _client, _local
    with _lock:
        if _client is None:
            _client = connect(**settings)
            tensorflow_forget()
            _local = place(_client.workers)


def shutdown() -> None:
    """Leaves the cluster. `init` may be called again afterwards."""
    global _client
    with _lock:
        client, _client = _client, None
        tensorflow_forget()
    if client is not None:
        client.close()


def initialized() -> bool:
    """Whether the process has a client."""
    return _client is not None


def client_or_default(client: Client | None = None) -> Client:
    """Returns the given client, or the client of the process."""
    if client is not None:
        if not isinstance(client, Client):
            raise InputError(f"{client!r} is not a client: pass the result of gradwire.connect()", "client")
        return client
    if _client is None:
        raise InputError(
            "gradwire.tensorflow is not initialized: call gradwire.tensorflow.init() first, or pass client=…", "not_initialized"
        )
    return _client


def rank() -> int:
    """The rank of this worker."""
    return client_or_default().rank


def size() -> int:
    """The number of workers of the job."""
    return client_or_default().workers


def local_rank() -> int:
    """The number of this worker among the workers of its machine, from the launcher (BYTEPS_LOCAL_RANK, LOCAL_RANK); 0 without
    a launcher. Raises SettingError in Slurm and MPI tasks if it cannot be determined."""
    return _known_place().rank


def local_size() -> int:
    """The number of workers on this machine, from the launcher (BYTEPS_LOCAL_SIZE, LOCAL_WORLD_SIZE); 1 without a launcher.
    Raises SettingError in Slurm and MPI tasks if it cannot be determined."""
    return _known_place().size


def _known_place() -> Place:
    client_or_default()
    return known(_local)
