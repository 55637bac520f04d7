"""Who contributes to a round, and what: each worker adds a code of its own, and counts for all of them. Owns that tensor; what codes and
counts mean is its user's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .._native import Handle
from ..client import Client
from ..optimizers import Assign


class Called(NamedTuple):
    """A round of a roll."""

    # By rank; 0 also for workers that have left.
    codes: list[int]
    # How many workers took part.
    present: int
    counts: list[int]


class Roll:
    """A round of a code for each worker, and of counts that are summed over workers."""

    def __init__(self, client: Client, name: str, counts: int = 0) -> None:
        self._client, length = client, client.workers + 1 + counts
        self.declared = client.declare(name, length, "int32", Assign(), mode="sync", backup_workers=0)
        self._numbers = client.empty(length, "int32")
        self._handle: Handle | None = None

    def begin(self, code: int, counts: Iterable[int] = ()) -> None:
        """Contributes a code and counts."""
        workers = self._client.workers
        self._numbers[:workers] = 0
        self._numbers[self._client.rank] = code
        self._numbers[workers:] = [1, *counts]
        self._handle = self._client.push_pull(self.declared, self._numbers, out=self._numbers)

    def end(self) -> Called:
        """Waits for the round."""
        assert self._handle is not None
        self._handle.wait()
        workers, numbers = self._client.workers, self._numbers.tolist()
        return Called(numbers[:workers], numbers[workers], numbers[workers + 1 :])
