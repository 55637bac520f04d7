"""Compares what scripts have set in their optimizers. If a script changes the learning rate on some ranks only, servers follow rank 0,
and workers that update the weights diverge; both would be silent. It must not decide what servers do."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

import gradwire

from ..client import Client
from ._key import Key

_log = logging.getLogger("gradwire.mxnet")
_NAMES = ("the learning rate", "the weight decay", "rescale_grad")


def _values(optimizer: Any) -> tuple[float, ...]:
    """What a script may set. A scheduler's rate follows from the number of updates."""
    rate = optimizer.lr if optimizer.lr_scheduler is None else 0.0
    scale = optimizer.rescale_grad
    return float(rate), float(optimizer.wd), float(scale.asscalar() if hasattr(scale, "asscalar") else scale)


class Rates:
    """What all workers have set, in a tensor in which each has a row: the update of a key from which on it holds, and the values. A worker
    writes its row before its contribution to that update, and compares all rows when the update is complete. By then each worker that
    has changed its values, too, has written its row. A row of a later update is left out: that worker is already ahead."""

    def __init__(self, client: Client, store: int) -> None:
        self._client, self._name = client, f"rates/{store}"
        self._tensor: Any = None
        #: The key whose updates are counted: the first one.
        self._key: Key | None = None
        self._update = 0
        self._row: tuple[float, ...] = (0.0,) * (1 + len(_NAMES))
        self._is_new = False

    def look(self, optimizer: Any, key: Key, effect: str) -> None:
        """The key is about to be updated once more."""
        if self._key is None:
            self._key = key
        if key is not self._key:
            return
        if self._is_new:
            key.settle()
            self._compare(effect)
            self._is_new = False
        self._update += 1
        now = _values(optimizer)
        if now != self._row[1:]:
            self._write((float(self._update), *now))
            self._is_new = True

    def go_on(self, update: int) -> None:
        """A worker that was restarted has this number of complete updates of the first key."""
        self._update = update
        tensor = self._declared()
        # The tensor still has the row that the failed process wrote, and the next change is a difference to it.
        self._client.resume([tensor])
        self._row = tuple(float(value) for value in self._client.pull(tensor).wait()[self._client.rank])

    def _declared(self) -> Any:
        if self._tensor is None:
            shape = (self._client.workers, 1 + len(_NAMES))
            self._tensor = self._client.declare(self._name, shape, "float64", optimizer=gradwire.Sum(), mode="async")
        return self._tensor

    def _write(self, row: tuple[float, ...]) -> None:
        changes = np.zeros((self._client.workers, len(row)))
        changes[self._client.rank] = np.subtract(row, self._row)
        self._client.push(self._declared(), changes).wait()
        self._row = row

    def _compare(self, effect: str) -> None:
        rows = self._client.pull(self._tensor).wait()
        known = [rank for rank, row in enumerate(rows) if 0 < row[0] <= self._update]
        for at, name in enumerate(_NAMES, 1):
            values = [rows[rank][at] for rank in known]
            if all(math.isclose(value, values[0], rel_tol=1e-6, abs_tol=1e-12) for value in values):
                continue
            each = ", ".join(f"{value:g} on rank {rank}" for rank, value in zip(known, values))
            _log.warning("gradwire: %s of the optimizer differs between workers: %s. %s: set it on every worker", name, each, effect)
