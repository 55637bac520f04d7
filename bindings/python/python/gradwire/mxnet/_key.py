"""One key of a store: its tensor at the servers, its place in the engine's order, and where its update runs."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

import gradwire

from . import _arrays, _rules
from ._arrays import Way, handle_of
from ._connection import Connection


class Key:
    """Operations on it are first in, first out."""

    def __init__(self, connection: Connection, name: str, index: Any, value: Any, rule: Any, codec: Any, mode: Any) -> None:
        #: What optimizers call it.
        self.index = index
        self.shape, self.is_sparse = tuple(value.shape), _arrays.is_sparse(value)
        self.dtype = np.dtype(value.dtype)
        self.rule = rule
        #: Are its gradients rows, as the optimizer needs to know? None: nothing was pushed yet that says.
        self.has_rows: bool | None = None
        self._name, self._connection, self._client = name, connection, connection.client
        elements = int(np.prod(self.shape, dtype=np.int64))
        self.tensor = self._client.declare(name, (elements,), self.dtype, optimizer=rule, codec=codec, mode=mode)
        self.way = Way(self.shape, self.dtype)
        self._order = mx.nd.zeros((1,), mx.cpu())
        self._native = connection.engine.key(self.tensor, handle_of(self._order))
        # Where workers update: the weights, and the sum of a round's gradients.
        self.stored: Any = None
        self._sum: Any = None
        # And where gradients are rows: which of them a round has, as a key of its own.
        self._marks: Key | None = None
        self._marked: Any = None
        #: Servers are told the rule at the next update in any case: they may have that of another step.
        self.is_told_again = False
        # Whether an updater has updated row-sparse weights.
        self._is_tried = False

    def set_initial(self, value: Any) -> None:
        """Rank 0's counts; every rank's call ends when it is set."""
        dense = _arrays.whole(value)
        self._client.init(self.tensor, np.ascontiguousarray(dense.asnumpy()).reshape(-1))

    def change_rule(self, rule: Any) -> None:
        """From this worker's next contribution on; those that the engine still has are before it."""
        self.settle()
        self._client.change_rule(self.tensor, rule)

    def settle(self) -> None:
        """Waits until the engine has ended all operations on it."""
        self._order.wait_to_read()

    def missing(self, within_s: float) -> list[int]:
        """The workers whose next gradient of this key has not reached the servers, the first of them."""
        self.settle()
        return self._client._missing(self.tensor, within_s)

    def kept(self, arrays: int, leads: bool) -> list[Any]:
        """What servers keep of it, in rounds of their own, which every worker takes part in; the first leads."""
        zeros, found = mx.nd.zeros(self.shape, mx.cpu(), dtype=self.dtype), []
        for array in range(arrays):
            if leads:
                self.change_rule(_rules.exchange(array))
            found.append(mx.nd.empty(self.shape, mx.cpu(), dtype=self.dtype))
            self.push_pull([zeros], [found[-1]], 0)
            # And back.
            self.push_pull([zeros], [mx.nd.empty(self.shape, mx.cpu(), dtype=self.dtype)], 0)
        if leads and arrays:
            self.change_rule(self.rule)
        return found

    def push(self, arrays: list[Any], priority: int) -> None:
        # Has a name, so that it lives until the native half has a reference of its own.
        gradient = self.way.gradient(arrays)
        self._native.push(handle_of(gradient), priority)

    def pull(self, arrays: list[Any], priority: int) -> None:
        direct, rest = self.way.weights(arrays)
        self._native.pull([handle_of(array) for array in direct], priority)
        _copy(direct[0], rest)

    def push_pull(self, gradients: list[Any], arrays: list[Any], priority: int) -> None:
        gradient = self.way.gradient(gradients)
        direct, rest = self.way.weights(arrays)
        self._native.push_pull(handle_of(gradient), [handle_of(array) for array in direct], priority)
        _copy(direct[0], rest)

    def hold(self) -> None:
        """From now on this worker has the weights, and servers sum gradients only."""
        if self.stored is None:
            self.stored = mx.nd.empty(self.shape, mx.cpu(), dtype=self.dtype)
            self._sum = mx.nd.empty(self.shape, mx.cpu(), dtype=self.dtype)
            self.pull([self.stored], 0)

    def update(self, arrays: list[Any], updater: Any, name: Any, priority: int) -> None:
        """Sums a round's gradients, and has the updater, which calls the key by a name, apply them to what this worker
        holds."""
        self.push_pull(arrays, [self._sum], priority)
        updater(name, self._sum, self.stored)

    def hold_rows(self) -> None:
        """As `hold`, for gradients that are rows."""
        self.hold()
        if self._marks is not None:
            return
        rows = mx.nd.zeros((self.shape[0],), mx.cpu())
        # No name of a script's begins so.
        self._marks = Key(self._connection, f"rows/{self._name}", None, rows, gradwire.Assign(), None, "sync")
        self._marked = rows
        if self.is_sparse:
            self.stored = _arrays.all_rows(self.stored)

    @property
    def is_by_rows(self) -> bool:
        """Has a worker held it as rows are updated? It stays so."""
        return self._marks is not None

    def update_rows(self, arrays: list[Any], updater: Any, name: Any, priority: int) -> None:
        """As `update`, with the rows that some worker pushed and no others."""
        assert self._marks is not None
        marks = _arrays.marks_of(arrays, self.shape[0])
        self._marks.push_pull([marks], [self._marked], priority)
        self.push_pull(arrays, [self._sum], priority)
        rows = _arrays.rows_of(self._sum, self._marked)
        if self._is_tried or not _arrays.is_sparse(self.stored):
            updater(name, rows, self.stored)
            return
        before = self.stored.copy()
        try:
            updater(name, rows, self.stored)
        except TypeError:
            # It assigns row-sparse weights to a dense array, perhaps after it has changed them. MXNet's servers ignore the exception;
            # with dense weights the result is the same.
            self.stored = _arrays.whole(before)
            getattr(updater, "states", {}).pop(name, None)
            updater(name, rows, self.stored)
        self._is_tried = True

    def read(self, arrays: list[Any]) -> None:
        """What this worker holds."""
        _copy(_arrays.whole(self.stored), arrays)

    def pull_rows(self, ids: list[Any], arrays: list[Any], priority: int) -> None:
        """Rows of it, for each array its own or for all the same."""
        if self.stored is None:
            dense = mx.nd.empty(self.shape, mx.cpu(), dtype=self.dtype)
            self.pull([dense], priority)
        else:
            dense = _arrays.whole(self.stored)
        if len(ids) == 1:
            _arrays.copy_rows(dense, ids[0], arrays)
            return
        for some, array in zip(ids, arrays):
            _arrays.copy_rows(dense, some, [array])


def _copy(array: Any, to: list[Any]) -> None:
    for one in to:
        array.copyto(one)
