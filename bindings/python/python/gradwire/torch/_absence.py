"""Wrappers that this worker has dropped, or whose hooks it has removed, in a `join`. If another worker still had such a wrapper, it would
wait in the next round for as long as this worker is alive. This worker therefore takes part in one more round of each, as absent:
if all workers are absent, the wrapper is over, and otherwise all workers get the same error."""

from __future__ import annotations

from .._native import Tensor as Declared
from ..client import Client, wait_all
from ..errors import InputError
from ._roll import Called, Roll

# The code of an absent worker in the rolls of gradients and of buffers. Those that take part have smaller ones.
ABSENT = 6


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
    """The tensors of the rounds of a wrapper, without its model and its buffers: what outlives the wrapper."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client, self.prefix = client, prefix
        self.roll: Roll | None = None
        self.gradients: list[Declared] = []
        # The keys of those to whose round this worker has already contributed, as after a backward without a step.
        self.sent: set[int] = set()

    def take_part(self) -> bool:
        """Takes part in one round as absent, and returns False: there is no other one."""
        assert self.roll is not None
        missing = [one for one in self.gradients if one.key not in self.sent]
        handles = [self._client.push(one, self._client.empty(one.size, one.element)) for one in missing]
        self.roll.begin(ABSENT, [0] * len(self.gradients))
        refuse_absent(self.roll.end(), self.prefix)
        wait_all(handles)
        return False
