"""A store whose parameters are updated by an optimizer of MXNet, in the way of MXNet's own servers."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from ..errors import InputError
from ..mxnet import _arrays
from ..mxnet._attributes import attributes_of, set_attributes

class MxnetStore:
    """See `Store` of the handler."""

    def __init__(self) -> None:
        self._optimizer: Any = None
        self._updater: Any = None
        self._weights: dict[str, Any] = {}
        self._indices: dict[str, Any] = {}
        # Parameters whose weights are row-sparse in the script.
        self._sparse: set[str] = set()
        # Parameters whose rows the optimizer has updated before.
        self._tried: set[str] = set()

    def set_optimizer(self, kind: type[Any], attributes: dict[str, Any]) -> None:
        try:
            optimizer = kind()
        except TypeError as error:
            raise InputError(f"{kind.__name__} cannot be made without arguments ({error}): register a subclass that can", "optimizer") from error
        set_attributes(optimizer, attributes)
        self._optimizer, self._updater = optimizer, mx.optimizer.get_updater(optimizer)

    def change(self, attributes: dict[str, Any]) -> None:
        if self._optimizer is None:
            raise InputError("no optimizer is set", "optimizer")
        set_attributes(self._optimizer, attributes)

    def init(self, key: str, index: Any, value: Any, is_sparse: bool) -> None:
        weights = mx.nd.array(value, dtype=value.dtype)
        self._weights[key], self._indices[key] = weights, index
        if is_sparse:
            self._sparse.add(key)

    def _weight(self, key: str) -> Any:
        if key not in self._weights:
            raise InputError(f"there is no key {key}: init comes first", "request")
        return self._weights[key]

    def push(self, key: str, arrays: list[Any]) -> None:
        weights = self._weight(key)
        if self._updater is None:
            raise InputError("an asynchronous store needs an optimizer: call set_optimizer before push", "optimizer")
        if len(arrays) == 1:
            self._update(key, _as(arrays[0], weights), _arrays.whole(weights))
            return
        ids, values = arrays
        shape = tuple(weights.shape)
        if ids.ndim != 1 or values.shape != (len(ids), *shape[1:]) or (ids.size and (ids.min() < 0 or ids.max() >= shape[0])):
            raise InputError(f"key {key} has the shape {shape}, and the gradient has other rows", "wrong_shape")
        rows = _arrays.rows_array(values, ids, shape, weights.dtype)
        if key in self._sparse and not _arrays.is_sparse(weights):
            weights = _arrays.all_rows(weights)
        if key in self._tried or not _arrays.is_sparse(weights):
            self._update(key, rows, weights)
            return
        before = weights.copy()
        try:
            self._update(key, rows, weights)
        except TypeError:
            # The optimizer does not support row-sparse weights, and may have changed them before it failed. Dense weights give the same result.
            self._sparse.discard(key)
            self._updater.states.pop(self._indices[key], None)
            self._update(key, rows, _arrays.whole(before))
        self._tried.add(key)

    def _update(self, key: str, gradient: Any, weights: Any) -> None:
        if tuple(gradient.shape) != tuple(weights.shape):
            raise InputError(f"key {key} has the shape {tuple(weights.shape)}, and the gradient {tuple(gradient.shape)}", "wrong_shape")
        self._updater(self._indices[key], gradient, weights)
        # MXNet raises the error of an asynchronous failure here.
        weights.wait_to_read()
        self._weights[key] = weights

    def pull(self, key: str) -> Any:
        return _arrays.whole(self._weight(key)).asnumpy()

    def pull_rows(self, key: str, ids: Any) -> Any:
        whole = self.pull(key)
        if ids.ndim != 1 or (ids.size and (ids.min() < 0 or ids.max() >= len(whole))):
            raise InputError(f"key {key} has {len(whole)} rows, and not all of those that were asked for", "wrong_shape")
        return whole[ids]

    def keys(self) -> list[str]:
        return list(self._weights)

    def state(self) -> tuple[Any, list[Any]]:
        arrays: list[Any] = []
        keys = [[key, self._indices[key], key in self._sparse] for key in self._weights]
        arrays += [self.pull(key) for key in self._weights]
        states, counts, rate = [], {}, {}
        if self._updater is not None:
            states = [[index, _described(state, arrays)] for index, state in self._updater.states.items()]
            counts = {"counts": dict(self._optimizer._index_update_count), "num_update": self._optimizer.num_update}
            rate = attributes_of(self._optimizer)
        return [keys, states, counts, rate], arrays

    def restore(self, value: Any, arrays: list[Any]) -> None:
        keys, states, counts, rate = value
        for (key, index, is_sparse), array in zip(keys, arrays):
            self.init(key, index, array, is_sparse)
        rest = iter(arrays[len(keys) :])
        if self._updater is None:
            return
        set_attributes(self._optimizer, rate)
        self._updater.states.update({index: _made(state, rest) for index, state in states})
        self._updater.states_synced.update({index: True for index, _ in states})
        self._optimizer._index_update_count.update(counts["counts"])
        self._optimizer.num_update = counts["num_update"]


def _as(array: Any, like: Any) -> Any:
    return mx.nd.array(array, dtype=like.dtype)


def _described(state: Any, arrays: list[Any]) -> Any:
    """An optimizer's state as a value, with its arrays."""
    if state is None:
        return None
    if isinstance(state, (list, tuple)):
        return tuple(_described(one, arrays) for one in state)
    if isinstance(state, mx.nd.NDArray):
        arrays.append(_arrays.whole(state).asnumpy())
        return "row_sparse" if _arrays.is_sparse(state) else "dense"
    raise InputError(f"the optimizer keeps a {type(state).__name__}, which cannot be saved: keep arrays", "state")


def _made(of: Any, arrays: Any) -> Any:
    if of is None:
        return None
    if isinstance(of, tuple):
        return tuple(_made(one, arrays) for one in of)
    array = next(arrays)
    made = mx.nd.array(array, dtype=array.dtype)
    return made.tostype("row_sparse") if of == "row_sparse" else made
