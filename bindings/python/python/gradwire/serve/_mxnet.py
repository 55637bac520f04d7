"""A store whose parameters are updated by an optimizer of MXNet, in the way of MXNet's own servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

from ..errors import InputError
from ..mxnet import _arrays
from ..mxnet._attributes import is_own, scheduler_of, set_attributes


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

    def make(self, kind: type[Any], attributes: dict[str, Any]) -> Any:
        try:
            optimizer = kind()
        except TypeError as error:
            raise InputError(f"{kind.__name__} cannot be made without arguments ({error}): register a subclass that can", "optimizer") from error
        set_attributes(optimizer, attributes)
        return optimizer

    def set_optimizer(self, kind: type[Any], attributes: dict[str, Any]) -> None:
        self._optimizer = self.make(kind, attributes)
        self._updater = mx.optimizer.get_updater(self._optimizer)

    def change(self, attributes: dict[str, Any]) -> None:
        if self._optimizer is None:
            raise InputError("no optimizer is set", "optimizer")
        set_attributes(self._optimizer, attributes)

    def init(self, key: str, index: Any, value: Any, is_sparse: bool) -> None:
        if key in self._weights:
            if tuple(self._weights[key].shape) != value.shape:
                raise InputError(f"key {key} has the shape {tuple(self._weights[key].shape)} here, and {value.shape} in the script", "wrong_shape")
            return
        self._weights[key], self._indices[key] = mx.nd.array(value, dtype=value.dtype), index
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
        weights = self._weight(key)
        if ids.ndim != 1 or (ids.size and (ids.min() < 0 or ids.max() >= weights.shape[0])):
            raise InputError(f"key {key} has {weights.shape[0]} rows, and not all of those that were asked for", "wrong_shape")
        if not ids.size:
            return np.empty((0, *weights.shape[1:]), weights.dtype)
        # Row-sparse weights have all rows here, in order.
        rows = weights.data if _arrays.is_sparse(weights) else weights
        return mx.nd.take(rows, mx.nd.array(ids, dtype="int64")).asnumpy()

    def state(self) -> tuple[Any, list[Any]]:
        keys = [[key, self._indices[key], key in self._sparse] for key in self._weights]
        arrays = [self.pull(key) for key in self._weights]
        if self._updater is None:
            return [keys, None, None, None], arrays
        states = [[index, _described(state, arrays, "its state")] for index, state in self._updater.states.items()]
        counts = [list(self._optimizer._index_update_count.items()), self._optimizer.num_update]
        now = {name: value for name, value in vars(self._optimizer).items() if is_own(name)}
        return [keys, states, counts, _described(now, arrays, "the optimizer")], arrays

    def restore(self, value: Any, arrays: list[Any]) -> None:
        keys, states, counts, now = value
        for (key, index, is_sparse), array in zip(keys, arrays):
            self.init(key, index, array, is_sparse)
        rest = iter(arrays[len(keys) :])
        if self._updater is None:
            return
        self._updater.states.update({index: _made(state, rest) for index, state in states})
        self._updater.states_synced.update({index: True for index, _ in states})
        self._optimizer._index_update_count.update(counts[0])
        self._optimizer.num_update = counts[1]
        vars(self._optimizer).update(_made(now, rest))


def _as(array: Any, like: Any) -> Any:
    return mx.nd.array(array, dtype=like.dtype)


def _described(state: Any, arrays: list[Any], what: str) -> Any:
    """What an optimizer keeps as a value, with its arrays."""
    if state is None or isinstance(state, (bool, int, float, str)):
        return ["plain", state]
    if isinstance(state, np.generic):
        return ["plain", state.item()]
    if type(state) in (list, tuple):
        return [type(state).__name__, [_described(one, arrays, what) for one in state]]
    if isinstance(state, dict):
        return ["dict", [[key, _described(one, arrays, f"{what}[{key!r}]")] for key, one in state.items()]]
    if isinstance(state, mx.nd.NDArray):
        arrays.append(_arrays.whole(state).asnumpy())
        return ["row_sparse" if _arrays.is_sparse(state) else "dense", None]
    if isinstance(state, np.ndarray):
        arrays.append(state)
        return ["numpy", None]
    if isinstance(state, mx.lr_scheduler.LRScheduler):
        return ["scheduler", [type(state).__name__, _described(vars(state), arrays, what)]]
    raise InputError(f"{what} has a {type(state).__name__}, which cannot be saved: keep arrays, numbers, lists and dictionaries", "state")


def _made(of: Any, arrays: Iterator[Any]) -> Any:
    kind, value = of
    if kind == "plain":
        return value
    if kind in ("list", "tuple"):
        made = [_made(one, arrays) for one in value]
        return made if kind == "list" else tuple(made)
    if kind == "dict":
        return {key: _made(one, arrays) for key, one in value}
    if kind == "scheduler":
        return scheduler_of(value[0], _made(value[1], arrays))
    array = next(arrays)
    if kind == "numpy":
        return array.copy()
    made = mx.nd.array(array, dtype=array.dtype)
    # With all rows: MXNet's lazy updates write to rows that are not there.
    return _arrays.all_rows(made) if kind == "row_sparse" else made
