"""The client of the process, for scripts that do not handle clients themselves. The modules of frameworks have one each."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from ._place import Place, known, place
from .client import Client, connect
from .errors import InputError


def _client_of(module: str) -> Any:
    return importlib.import_module(f"{module}._process").process_client


class ProcessClient:
    """A module's client of the process, which `join` creates. `changed` is called when there is another client or none."""

    def __init__(self, module: str, changed: Callable[[], None] = lambda: None) -> None:
        self._module, self._changed = module, changed
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._local: Place | None = None

    def __reduce__(self) -> Any:
        # A function such as `rank`, in a process to which it is sent, is about the client of that process.
        return _client_of, (self._module,)

    def join(self, settings: Callable[[], dict[str, Any]]) -> None:
        """Joins the cluster with these settings, unless there is a client."""
        with self._lock:
            if self._client is None:
                self._client = connect(**settings())
                self._changed()
                self._local = place(self._client.workers)

    def leave(self) -> bool:
        """Leaves the cluster. Returns whether there was a client."""
        with self._lock:
            client, self._client = self._client, None
            self._changed()
        if client is None:
            return False
        client.close()
        return True

    def initialized(self) -> bool:
        """Whether the process has a client."""
        return self._client is not None

    def client_or_default(self, client: Client | None = None) -> Client:
        """Returns the given client, or the client of the process."""
        if client is not None:
            if not isinstance(client, Client):
                raise InputError(f"{client!r} is not a client: pass the result of gradwire.connect()", "client")
            return client
        if self._client is None:
            raise InputError(f"{self._module} is not initialized: call {self._module}.init() first, or pass client=…", "not_initialized")
        return self._client

    def rank(self) -> int:
        """The rank of this worker."""
        return self.client_or_default().rank

    def size(self) -> int:
        """The number of workers of the job."""
        return self.client_or_default().workers

    def local_rank(self) -> int:
        """The number of this worker among the workers of its machine, from the launcher (BYTEPS_LOCAL_RANK, LOCAL_RANK); 0 without
        a launcher. Raises SettingError in Slurm and MPI tasks if it cannot be determined."""
        return self._known_place().rank

    def local_size(self) -> int:
        """The number of workers on this machine, from the launcher (BYTEPS_LOCAL_SIZE, LOCAL_WORLD_SIZE); 1 without a launcher.
        Raises SettingError in Slurm and MPI tasks if it cannot be determined."""
        return self._known_place().size

    def cross_rank(self) -> int:
        """The number of this worker's machine, if all machines have as many workers, and ranks follow each other on each."""
        return self.rank() // self.local_size()

    def cross_size(self) -> int:
        """The number of machines, if all of them have as many workers."""
        return self.size() // self.local_size()

    def _known_place(self) -> Place:
        self.client_or_default()
        return known(self._local)
