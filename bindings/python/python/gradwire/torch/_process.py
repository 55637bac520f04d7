"""The client of the whole process, for scripts that know one library and no clients: `init` makes it. Programs with clients
of their own pass them as `client=…` and need none of this."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

from ..client import Client, connect
from ..errors import InputError


class _Local(NamedTuple):
    """This worker among those of its machine."""

    rank: int
    size: int


# Launchers tell a process its place on its machine by these.
_PLACES = (
    ("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"),
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)

_lock = threading.Lock()
_client: Client | None = None
_local = _Local(0, 1)


def init(lazy: bool = True, **settings: Any) -> None:
    """Joins the cluster that settings name, as `gradwire.connect` does, and makes that client the process's. Again is
    harmless."""
    global _client, _local
    with _lock:
        if _client is None:
            _client, _local = connect(**settings), _place()


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
    """This worker's number on its machine, as its launcher says (BYTEPS_LOCAL_RANK, LOCAL_RANK); else 0."""
    client_or_default()
    return _local.rank


def local_size() -> int:
    """How many workers this machine has, as its launcher says (BYTEPS_LOCAL_SIZE, LOCAL_WORLD_SIZE); else 1."""
    client_or_default()
    return _local.size


def _place() -> _Local:
    for rank_name, size_name in _PLACES:
        number, count = os.environ.get(rank_name, ""), os.environ.get(size_name, "")
        if number.isdecimal():
            return _Local(int(number), int(count) if count.isdecimal() else int(number) + 1)
    return _Local(0, 1)
