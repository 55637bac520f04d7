"""The client of the whole process, for scripts that know one library and no clients: `init` makes it. Programs with clients
of their own pass them as `client=…` and need none of this."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

from ..client import Client, connect
from ..errors import InputError, SettingError


class _Local(NamedTuple):
    """This worker among those of its machine."""

    rank: int
    size: int


# Launchers tell a worker its place on its machine by these.
_PLACES = (("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
# Open MPI counts all of its tasks, so that this is a worker's place only where every task is a worker.
_OF_TASKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
# How many tasks there are, as Open MPI, other MPIs and Slurm tell each.
_TASKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
# Of a configuration that is wrong.
_EXIT_CONFIG = 78

_lock = threading.Lock()
_client: Client | None = None
_local: _Local | None = None


def init(lazy: bool = True, **settings: Any) -> None:
    """Joins the cluster that settings name, as `gradwire.connect` does, and makes that client the process's. Again is
    harmless."""
    global _client, _local
    with _lock:
        if _client is None:
            _client = connect(**settings)
            _local = _place(_client.workers)


def shutdown() -> None:
    """Leaves in good order. `init` may come again."""
    global _client
    with _lock:
        client, _client = _client, None
    if client is not None:
        client.close()


def initialized() -> bool:
    """Has the process a client?"""
    return _client is not None


def client_or_default(client: Client | None = None) -> Client:
    """The client that is given, or the process's."""
    if client is not None:
        if not isinstance(client, Client):
            raise InputError(f"{client!r} is no client; pass what gradwire.connect() returned", "client")
        return client
    if _client is None:
        raise InputError("call gradwire.torch.init() first, or pass client=…", "not_initialized")
    return _client


def rank() -> int:
    """This worker's rank."""
    return client_or_default().rank


def size() -> int:
    """How many workers the job has."""
    return client_or_default().workers


def local_rank() -> int:
    """This worker's number among the workers of its machine, as its launcher says (BYTEPS_LOCAL_RANK, LOCAL_RANK); 0 where
    nothing launched it. Raises SettingError in tasks of Slurm and MPI that do not tell."""
    return _known_place().rank


def local_size() -> int:
    """How many workers this machine has, as its launcher says (BYTEPS_LOCAL_SIZE, LOCAL_WORLD_SIZE); 1 where nothing
    launched it. Raises SettingError in tasks of Slurm and MPI that do not tell."""
    return _known_place().size


def _known_place() -> _Local:
    client_or_default()
    if _local is None:
        raise SettingError(
            "which worker of its machine this is cannot be told from what its tasks are given; set BYTEPS_LOCAL_RANK and "
            "BYTEPS_LOCAL_SIZE, or have consecutive tasks on each machine (mpirun --map-by slot)",
            "unknown_place",
            _EXIT_CONFIG,
        )
    return _local


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _place(workers: int) -> _Local | None:
    """The place that the environment tells; none where tasks of several workers are not told theirs, as whoever takes a device
    by a wrong number shares it silently."""
    tasks = [count for count in map(_number, _TASKS) if count is not None]
    of_tasks = [_OF_TASKS] if _number("OMPI_COMM_WORLD_SIZE") == workers else []
    for rank_name, size_name in [*_PLACES, *of_tasks]:
        number, count = _number(rank_name), _number(size_name)
        if number is not None:
            return _Local(number, number + 1 if count is None else count)
    return None if workers > 1 and any(count > 1 for count in tasks) else _Local(0, 1)
