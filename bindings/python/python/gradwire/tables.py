"""Sparse tables: float32 rows with 64-bit ids. Servers create a row when it is first used."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Optional, Union

import numpy as np

from . import _native
from ._native import Pending, key_of_name
from .errors import InputError
from .optimizers import Optimizer

#: Keys of tables are below this number. Keys of names have the highest bit set.
KEYS = 1 << 16
_NAMED = KEYS >> 1


@dataclass(frozen=True)
class Uniform:
    """Uniformly distributed initial values from `low` (included) to `high` (excluded). Each is computed from the seed, the
    row's id and the position in the row."""

    low: float
    high: float
    seed: int = 0


class Table:
    """A table; `Client.table` returns one. Ids are integer arrays of any shape, with values from 0 to 2**64 - 1. Do not read or
    write an array until the handle of the operation that uses it has completed."""

    def __init__(self, inner: _native.Table, name: str) -> None:
        self._inner, self.name = inner, name

    @property
    def key(self) -> int:
        """The key of the table."""
        return self._inner.key

    @property
    def width(self) -> int:
        """The number of elements in a row."""
        return self._inner.width

    def push_rows(self, ids: Any, values: Any, step: Optional[int] = None) -> Pending:
        """Pushes one float32 row for each id. `values` has the shape of `ids` with one more dimension, the shape `(ids, width)`,
        or is flat. The optimizer of the table is applied at once, to each row separately; rows with the same id are summed
        first. Later pulls of this worker return the updated rows.

        `step` is a number that grows with each push, such as the round. With it, a push is applied only once, even if a
        restarted worker (`Client.resume`) repeats the step with the same rows in the same order. A step that is smaller
        than the last one is an error of the handle. A process that replaces one that has left must continue with a larger
        step than the last step of that process; otherwise its pushes are not applied."""
        if step is not None and not 0 <= step < 2**64:
            raise InputError(f"invalid step {step}: use a number from 0 to 2**64 - 1", "step")
        return self._inner._push(_bits(ids)[1], values, step)

    def pull_rows(self, ids: Any, out: Any = None) -> Pending:
        """Fetches the row of each id into `out`, a writable float32 array of one of the shapes of `push_rows`, or into a new
        array with the shape of `ids` and one more dimension. `wait` of the handle returns the array. Pushes and pulls of one
        client take effect in the order in which they were called."""
        shape, bits = _bits(ids)
        return self._inner._pull(bits, np.empty((*shape, self.width), np.float32) if out is None else out)

    def __repr__(self) -> str:
        return f"<gradwire.Table {self.name or self.key} of rows of {self.width}>"


def key_of(key: Union[int, str]) -> tuple[int, str]:
    """Returns the key of a table, and its name if it has one."""
    if isinstance(key, str):
        return _NAMED | key_of_name(key) % _NAMED, key
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < KEYS:
        return int(key), ""
    raise InputError(f"invalid table key {key!r}: use a name, or a number from 0 to {KEYS - 1}", "key")


def described(
    key: int, width: int, optimizer: Optimizer, initial: Union[float, Uniform], admit_after: int, rows_max: int
) -> str:
    """The specification that is sent to servers."""
    begins = {"uniform": asdict(initial)} if isinstance(initial, Uniform) else {"constant": float(initial)}
    return json.dumps(
        {
            "key": key,
            "width": width,
            "optimizer": optimizer._json(),
            "initial": begins,
            "admit_after": admit_after,
            "rows_max": rows_max,
        }
    )


def _bits(ids: Any) -> tuple[tuple[int, ...], np.ndarray[Any, Any]]:
    """The shape of the ids, and the ids as 64-bit integers: a copy if they have another type."""
    foreign = hasattr(ids, "__dlpack__") and not hasattr(ids, "__array_interface__")
    try:
        array = np.from_dlpack(ids) if foreign else np.asarray(ids)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"ids must be an integer array, and this one cannot be read: {error}", "wrong_array") from error
    if array.dtype.kind not in "iu" and array.size:
        raise InputError(f"ids must be integers, but these are {array.dtype}: convert them", "wrong_dtype")
    if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        raise InputError(f"ids must be at least 0, but {int(array.min())} is one of them", "negative_id")
    return array.shape, np.ascontiguousarray(array, np.uint64).view(np.int64)
