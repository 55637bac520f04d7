"""One key of an asynchronous store whose weights an optimizer of MXNet updates at the servers (`gradwire serve`)."""

from __future__ import annotations

import functools
from typing import Any

import mxnet as mx
import numpy as np

from ..client import Client
from ..serve._remote import Remote
from . import _arrays
from ._arrays import Way
from ._attributes import attributes_of


class Serving:
    """What a store has of the servers that apply its optimizer."""

    def __init__(self, client: Client, name: str) -> None:
        self.remote = Remote(client, name, "mxnet")
        self._leads = client.rank == 0
        # The options of the optimizer that the servers have.
        self._sent: dict[str, Any] = {}
        # Keys that were pushed since the options were compared.
        self._pushed: set[Any] = set()

    def check(self, optimizer: Any) -> None:
        """Raises an error, on every worker, if the servers cannot apply it."""
        self.remote.check(type(optimizer).__name__, attributes_of(optimizer))

    def set_optimizer(self, optimizer: Any) -> None:
        """Servers follow rank 0's optimizer."""
        self._sent = attributes_of(optimizer)
        if self._leads:
            self.remote.set_optimizer(type(optimizer).__name__, self._sent)

    def follow(self, optimizer: Any, name: Any) -> None:
        """A key is pushed. Options that have changed are sent; they are compared once in a step, when a key is pushed again."""
        if not self._leads:
            return
        if self._pushed and name not in self._pushed:
            self._pushed.add(name)
            return
        self._pushed = {name}
        now = attributes_of(optimizer)
        if now != self._sent:
            self.remote.change({one: value for one, value in now.items() if self._sent.get(one, ...) != value})
            self._sent = now


class ServedKey:
    """As `Key`, as far as such a store needs it. Pushes do not wait for the servers, and pulls wait for the pushes before them."""

    #: Workers hold nothing.
    stored = None
    is_by_rows = False

    def __init__(self, remote: Remote, name: str, index: Any, value: Any) -> None:
        #: What optimizers call it.
        self.index = index
        self.shape, self.is_sparse = tuple(value.shape), _arrays.is_sparse(value)
        self.dtype = np.dtype(value.dtype)
        self._remote, self._name = remote, name
        self._way = Way(self.shape, self.dtype)

    def set_initial(self, value: Any) -> None:
        """Adds it at its server, if the server does not have it. One worker does that."""
        self._remote.init(self._name, self.index, _arrays.whole(value).asnumpy(), self.is_sparse)

    def push(self, arrays: list[Any]) -> None:
        """Sends the sum of the devices' gradients, which it waits for."""
        if all(map(_arrays.is_sparse, arrays)):
            rows = functools.reduce(mx.nd.sparse.elemwise_add, arrays)
            self._remote.push(self._name, [rows.indices.asnumpy(), rows.data.asnumpy()])
        else:
            self._remote.push(self._name, [self._way.gradient(arrays).asnumpy()])

    def pull(self, arrays: list[Any], priority: int) -> None:
        """Writes the weights into arrays."""
        weights = self._remote.pull(self._name, self._bytes())
        for array in arrays:
            if tuple(array.shape) != self.shape:
                raise mx.base.MXNetError(f"gradwire: an array of shape {tuple(array.shape)} for the weights of {self._name}, of shape {self.shape}")
            array[:] = weights

    def pull_rows(self, ids: list[Any], arrays: list[Any], priority: int) -> None:
        """Rows of it, for each array its own or for all the same."""
        for some, array in zip(ids * len(arrays) if len(ids) == 1 else ids, arrays):
            wanted = np.unique(some.asnumpy().astype("int64").ravel())
            rows = self._remote.pull(self._name, self._bytes() // max(1, self.shape[0]) * len(wanted), wanted)
            _arrays.rows_array(rows, wanted, self.shape, self.dtype).copyto(array)

    def settle(self) -> None:
        """Waits until its pushes are applied."""
        self._remote.settle()

    def _bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
