"""Who contributes to a round, and what: each worker adds a code of its own, and counts for all of them. Owns that tensor; what codes and
counts mean is its user's."""

from __future__ import annotations

from collections.abc import Iterable

from .._native import Handle
from ..client import Client
from ..optimizers import Assign


class Roll:
    """A round of a code for each worker, and of counts that are summed over workers."""

    def __init__(self, client: Client, name: str, counts: int = 0) -> None:
        self._client, length = client, client.workers + counts
        self._declared = client.declare(name, length, "int32", Assign(), mode="sync", backup_workers=0)
        self._numbers = client.empty(length, "int32")
        self._handle: Handle | None = None

    def begin(self, code: int, counts: Iterable[int] = ()) -> None:
        """Contributes a code and counts."""
        workers = self._client.workers
        self._numbers[:workers] = 0
        self._numbers[self._client.rank] = code
        self._numbers[workers:] = list(counts)
        self._handle = self._client.push_pull(self._declared, self._numbers, out=self._numbers)

    def end(self) -> tuple[list[int], list[int]]:
        """Waits, and returns the codes by rank, and the counts."""
        assert self._handle is not None
        self._handle.wait()
        numbers = self._numbers.tolist()
        return numbers[: self._client.workers], numbers[self._client.workers :]
