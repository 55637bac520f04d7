"""Who contributes to a round, and what: each worker adds a code of its own, and counts for all of them. Owns that tensor; what codes and
counts mean is its user's, but for the code of absent workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .._native import Handle
from .._native import Tensor as Declared
from ..client import Client, wait_all
from ..errors import InputError
from ..optimizers import Assign

# The code of an absent worker in the rolls of gradients and of buffers. Those that take part have smaller ones.
ABSENT = 6


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


def refuse_absent(called: Called, prefix: str) -> None:
    """Raises InputError if some workers of a round were absent, and others were not."""
    ranks = [rank for rank, code in enumerate(called.codes) if code == ABSENT]
    if ranks and len(ranks) < called.present:
        raise InputError(
            f"rank {ranks[0]} no longer has the wrapper with prefix {prefix!r}, which it has dropped or whose hooks it has removed, and "
            "other workers still have this wrapper: keep a reference to it on every worker until all have joined, or drop it on all",
            "absent",
        )


class Absence:
    """The tensors of the rounds of a wrapper, without its model and its buffers: what outlives a wrapper that this worker has dropped, or
    whose hooks it has removed, in a `join`. If another worker still had such a wrapper, it would wait in the next round for as long as
    this worker is alive. This worker therefore takes part in one more round of each, as absent: if all workers are absent, the wrapper is
    over, and otherwise all workers get the same error."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client, self.prefix = client, prefix
        self.roll: Roll | None = None
        self.gradients: list[Declared] = []
        # What travels with them.
        self.along: list[Declared] = []
        # The keys of those to whose round this worker has already contributed, as after a backward without a step.
        self.sent: set[int] = set()

    def take_part(self) -> bool:
        """Takes part in one round as absent, and returns False: there is no other one."""
        assert self.roll is not None
        missing = [one for one in [*self.gradients, *self.along] if one.key not in self.sent]
        handles = [self._client.push(one, self._client.empty(one.size, one.element)) for one in missing]
        self.roll.begin(ABSENT, [0] * len(self.gradients))
        refuse_absent(self.roll.end(), self.prefix)
        wait_all(handles)
        return False
