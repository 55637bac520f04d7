"""Sparse tables: rows of float32 under ids of 64 bits, which servers make at first touch. What a table is, and how ids and
rows are passed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Optional, Union

import numpy as np

from . import _native
from ._native import Pending, key_of_name
from .errors import InputError
from .optimizers import Optimizer

#: Keys of tables are below this. Those of names have the highest bit.
KEYS = 1 << 16
_NAMED = KEYS >> 1


@dataclass(frozen=True)
class Uniform:
    """What rows begin with: numbers evenly spread from `low` to below `high`, which follow from the seed, the row's id and
    the place in it."""

    low: float
    high: float
    seed: int = 0


class Table:
    """A table; `Client.table` makes one. Ids are arrays of whole numbers from 0 to 2**64 - 1, of any shape. Arrays that are
    passed belong to the operation until its handle is done."""

    def __init__(self, inner: _native.Table, name: str) -> None:
        self._inner, self.name = inner, name

    @property
    def key(self) -> int:
        """Its key."""
        return self._inner.key

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self._inner.width

    def push_rows(self, ids: Any, values: Any, step: Optional[int] = None) -> Pending:
        """Pushes a row of float32 for each id: an array of the ids' shape and one dimension more, of `(ids, width)`, or flat.
        The table's rule is applied at once, to each row by itself; rows of an id
        that stands there several times are summed first. This worker's later pulls see it.

        With `step`, a number of the trainer's that only grows, such as its round, what servers have of it already counts once
        where a worker that came again (`Client.resume`) repeats a step: the same rows in the same order. The handle's error
        says so of an earlier step than the last one. A process that takes the place of one that has left begins behind that
        one's last step, or its pushes are not applied."""
        if step is not None and not 0 <= step < 2**64:
            raise InputError(f"step {step} is none; use a number from 0 to 2**64 - 1", "step")
        return self._inner._push(_bits(ids)[1], values, step)

    def pull_rows(self, ids: Any, out: Any = None) -> Pending:
        """Brings the row of each id: into `out`, a writable array of float32 in one of those shapes, or a new array of the ids'
        shape and one dimension more, which the handle's wait returns. Pushes and pulls of one client are in the order in which they were
        called."""
        shape, bits = _bits(ids)
        return self._inner._pull(bits, np.empty((*shape, self.width), np.float32) if out is None else out)

    def __repr__(self) -> str:
        return f"<gradwire.Table {self.name or self.key} of rows of {self.width}>"


def key_of(key: Union[int, str]) -> tuple[int, str]:
    """The key of a table, and its name if it has one."""
    if isinstance(key, str):
        return _NAMED | key_of_name(key) % _NAMED, key
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < KEYS:
        return int(key), ""
    raise InputError(f"{key!r} is no table's key; use a name, or a number from 0 to {KEYS - 1}", "key")


def described(
    key: int, width: int, optimizer: Optimizer, initial: Union[float, Uniform], admit_after: int, rows_max: int
) -> str:
    """As servers are told."""
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
    """Ids' shape, and they themselves as 64 bits each: a copy where they are something else."""
    foreign = hasattr(ids, "__dlpack__") and not hasattr(ids, "__array_interface__")
    try:
        array = np.from_dlpack(ids) if foreign else np.asarray(ids)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"ids are an array of whole numbers; these cannot be read: {error}", "wrong_array") from error
    if array.dtype.kind not in "iu" and array.size:
        raise InputError(f"ids are whole numbers, these are {array.dtype}; convert them", "wrong_dtype")
    if array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        raise InputError(f"ids begin at 0, and {int(array.min())} is among these", "negative_id")
    return array.shape, np.ascontiguousarray(array, np.uint64).view(np.int64)
