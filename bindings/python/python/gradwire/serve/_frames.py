"""Requests to update servers and their replies as heads and bodies: a description and arrays. Nothing that is received is executed. It must not know
what they mean."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError

#: The handler's number at servers, and the name by which they say that they have it.
APP, MARK = 0x5550, "python_updates"
#: The first byte of a reply's head: the rest is the answer, or the body is the reason of a failure.
DONE, FAILED = b"\0", b"\1"
#: A longer description is in the body: heads of calls have at most 512 bytes.
_HEAD_MAX = 500
#: Deeper values are refused: they would exhaust the interpreter's stack.
_DEPTH_MAX = 16
_AXES_MAX = 32
_ALIGN = 64
_LENGTH = struct.Struct("<Q")
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple}


def pack(value: Any, arrays: Sequence[np.ndarray[Any, Any]] = ()) -> tuple[bytes, Any]:
    """Head and body of a value (None, numbers, strings, lists, tuples and dictionaries) with arrays. One array is not copied."""
    kept = [np.ascontiguousarray(array).reshape(np.shape(array)) for array in arrays]
    text = json.dumps([plain(value), [(array.dtype.str, list(array.shape)) for array in kept]]).encode()
    parts: list[Any] = []
    if len(text) > _HEAD_MAX:
        parts = [_LENGTH.pack(len(text)), text]
        text = b""
    at = sum(map(len, parts))
    for array in kept:
        parts += [bytes(-at % _ALIGN), array.reshape(-1).view(np.uint8)]
        at += -at % _ALIGN + array.nbytes
    parts = [part for part in parts if len(part)]
    return text, parts[0] if len(parts) == 1 else b"".join(parts)


def unpack(head: bytes, body: bytes) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """The value and the arrays, which are parts of the body. Raises InputError for anything that `pack` does not make."""
    try:
        at = 0
        if not head:
            (length,) = _LENGTH.unpack_from(body)
            at = _LENGTH.size + length
            head = body[_LENGTH.size : at]
        value, forms = json.loads(head)
        arrays = []
        for dtype, shape in forms:
            kind = np.dtype(str(dtype))
            if kind.kind not in "biuf" or len(shape) > _AXES_MAX or not all(type(axis) is int and axis >= 0 for axis in shape):
                raise ValueError("an array of another kind")
            at += -at % _ALIGN
            count = math.prod(shape)
            arrays.append(np.frombuffer(body, kind, count, at).reshape(shape) if count else np.empty(shape, kind))
            at += count * kind.itemsize
        return value_of(value), arrays
    except (struct.error, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"this is no request of gradwire.serve: {error}", "request") from error


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, with its types."""
    if depth > _DEPTH_MAX:
        raise InputError(f"a value is nested more than {_DEPTH_MAX} deep", "object")
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    for name, kind in _SEQUENCES.items():
        if type(value) is kind:
            return [name, [plain(one, depth + 1) for one in value]]
    if isinstance(value, dict):
        return ["dict", [[plain(key, depth + 1), plain(one, depth + 1)] for key, one in value.items()]]
    raise InputError(f"a {type(value).__module__}.{type(value).__qualname__} does not travel", "object")


def value_of(of: Any) -> Any:
    """The value of what `plain` returned."""
    if not isinstance(of, list):
        return of
    kind, parts = of
    if kind == "dict":
        return {value_of(key): value_of(one) for key, one in parts}
    return _SEQUENCES[kind](value_of(one) for one in parts)
