"""MXNet's arrays on their way to and from the native half: several devices summed, sparse ones made dense, foreign
layouts converted by MXNet itself. Everything here is pushed to the engine; nothing waits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray
from mxnet.ndarray.sparse import RowSparseNDArray

#: Arrays with more axes may lie in oneDNN's own layouts.
_PLAIN_AXES_MAX = 2
#: Set to 1, all arrays are copied by MXNet on their way.
STAGED_VARIABLE = "MXNET_GRADWIRE_STAGED"


def is_sparse(array: Any) -> bool:
    return isinstance(array, RowSparseNDArray)


def whole(array: Any) -> Any:
    """An array with all its rows."""
    return array.tostype("default") if is_sparse(array) else array


def handle_of(array: Any) -> int:
    """The address by which C functions know an array."""
    return int(array.handle.value)


def classic(array: Any, known: dict[int, Any] | None = None) -> Any:
    """An array of MXNet's numpy kind as the other kind, of the same memory: one for each where what is `known` is given."""
    if not hasattr(array, "as_nd_ndarray"):
        return array
    if known is None:
        return array.as_nd_ndarray()
    if id(array) not in known:
        known[id(array)] = array.as_nd_ndarray()
    return known[id(array)]


def flat_list(values: Any, known: dict[int, Any] | None = None) -> list[Any]:
    """The arrays of one key, one for each device."""
    return [classic(value, known) for value in (values if isinstance(values, (list, tuple)) else [values])]


def pairs(keys: Any, values: Any, known: dict[int, Any] | None = None) -> list[tuple[Any, list[Any]]]:
    """Each key with its arrays: of one key with one or several, or of a list of keys with a list of those."""
    if not isinstance(keys, (list, tuple)):
        return [(keys, flat_list(values, known))]
    if len(keys) != len(values):
        raise mx.base.MXNetError(f"gradwire: {len(keys)} keys, but {len(values)} values: pass one value per key")
    found: dict[Any, list[Any]] = {}
    for key, value in zip(keys, values):
        # A key that is named again has its arrays on several devices.
        found.setdefault(key, []).extend(flat_list(value, known))
    return list(found.items())


class Way:
    """How the arrays of one key travel."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self._staged = len(self.shape) > _PLAIN_AXES_MAX or os.environ.get(STAGED_VARIABLE, "0") != "0"
        self._in: Any = None
        self._out: Any = None

    def _buffer(self) -> Any:
        return mx.nd.empty(self.shape, mx.cpu(), dtype=self.dtype)

    def _is_plain(self, array: Any) -> bool:
        return (
            not self._staged
            and not is_sparse(array)
            and array.context.device_type != "gpu"
            and array.dtype == self.dtype
        )

    def gradient(self, arrays: list[Any]) -> Any:
        """The sum of the devices' arrays, as one that the native half can read."""
        if len(arrays) == 1 and self._is_plain(arrays[0]):
            return arrays[0]
        parts = [whole(array) for array in arrays]
        if len(parts) == 1 and parts[0] is not arrays[0] and self._is_plain(parts[0]):
            return parts[0]
        if self._in is None:
            self._in = self._buffer()
        if len(parts) == 1:
            parts[0].copyto(self._in)
        else:
            moved = [part.as_in_context(mx.cpu()).astype(self.dtype, copy=False) for part in parts]
            mx.nd.add_n(*moved, out=self._in)
        return self._in

    def weights(self, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        """Arrays for the native half to write, and those that the first of them is to be copied to afterwards."""
        plain: list[Any] = []
        rest: list[Any] = []
        for array in arrays:
            (plain if self._is_plain(array) else rest).append(array)
        if plain or not rest:
            return plain, rest
        if self._out is None:
            self._out = self._buffer()
        return [self._out], rest


def marks_of(arrays: list[Any], rows: int) -> Any:
    """1 for each row that one of the row-sparse arrays names, be it of zeros; 0 for the others. It waits for them."""
    marks = np.zeros(rows, "float32")
    for array in arrays:
        marks[array.indices.asnumpy()] = 1
    return mx.nd.array(marks)


def rows_of(dense: Any, marks: Any) -> Any:
    """An array as a row-sparse one of the rows that are marked, and of those that are not zero."""
    # A cast drops rows of zeros; the sum of two has the rows of both. Until the round is there, the engine lets wait what
    # else adds sparse arrays: workers push such keys in one order.
    column = marks.astype(dense.dtype).reshape((-1, *[1] * (len(dense.shape) - 1)))
    marked = mx.nd.cast_storage(mx.nd.broadcast_to(column, shape=dense.shape), "row_sparse")
    return mx.nd.sparse.elemwise_add(mx.nd.cast_storage(dense, "row_sparse"), marked * 0)


def all_rows(dense: Any) -> Any:
    """An array as a row-sparse one that names every row, as MXNet's optimizers need weights."""
    ids = mx.nd.arange(dense.shape[0], dtype="int64")
    return mx.nd.sparse.row_sparse_array((dense, ids), shape=dense.shape, dtype=dense.dtype)


def copy_rows(dense: Any, ids: Any, outs: list[Any]) -> None:
    """Rows of an array, as row-sparse arrays. Ids need be neither sorted nor different, and there may be none."""
    wanted = sorted(set(ids.asnumpy().astype("int64").ravel().tolist()))
    rows = mx.nd.take(dense, mx.nd.array(wanted, dtype="int64")) if wanted else None
    found = rows_array(rows, wanted, dense.shape, dense.dtype)
    for out in outs:
        found.copyto(out)


def rows_array(rows: Any, ids: Sequence[int], shape: Sequence[int], dtype: Any) -> Any:
    """A row-sparse array of these rows, which may be none."""
    if len(ids):
        return mx.nd.sparse.row_sparse_array((rows, mx.nd.array(ids, dtype="int64")), shape=shape, dtype=dtype)
    # MXNet takes no empty list of indices.
    return mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)


def is_array(value: Any) -> bool:
    return isinstance(value, NDArray)
