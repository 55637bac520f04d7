"""Values as JSON text and tensors, so that they travel between workers without pickle: nothing that is received is executed. Types are
kept. It must not know how text and tensors travel."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..errors import InputError

# Deeper values are refused: they would exhaust the interpreter's stack.
DEPTH_MAX = 64
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
_MAPPINGS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict}


def encode(value: Any, what: str = "the value") -> tuple[str, list[torch.Tensor]]:
    """Returns the text and the tensors of a value: None, numbers, strings, bytes, lists, tuples, sets, dictionaries, tensors, and numbers
    and arrays of numpy, in any combination. `what` names the value in errors."""
    tensors: list[torch.Tensor] = []
    described = _described(value, tensors, what, 0)
    shapes = [(list(one.shape), str(one.dtype).rpartition(".")[2]) for one in tensors]
    return json.dumps({"tensors": shapes, "value": described}, allow_nan=False), tensors


def decode(text: str, tensors: Iterator[torch.Tensor]) -> Any:
    """Returns the value of a text, with tensors in the order in which `encode` found them."""
    return _made(json.loads(text)["value"], tensors)


def tensors_of(text: str) -> list[tuple[list[int], torch.dtype]]:
    """Shapes and types of the tensors of a text, in order."""
    return [(shape, getattr(torch, dtype)) for shape, dtype in json.loads(text)["tensors"]]


def _described(value: Any, tensors: list[torch.Tensor], what: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise InputError(f"{what} is nested more than {DEPTH_MAX} deep, or contains itself", "object")
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return ["int", str(value)]
    if kind is float:
        return ["float", value.hex()]
    if kind is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    for name, sequence in _SEQUENCES.items():
        if kind is sequence:
            return [name, [_described(one, tensors, f"{what}[{at}]", depth + 1) for at, one in enumerate(value)]]
    for name, mapping in _MAPPINGS.items():
        if kind is mapping:
            return [
                name,
                [
                    [_described(key, tensors, f"a key of {what}", depth + 1), _described(one, tensors, f"{what}[{key!r}]", depth + 1)]
                    for key, one in value.items()
                ],
            ]
    if isinstance(value, torch.Tensor) and not value.is_sparse:
        tensors.append(value.detach().cpu())
        return ["tensor"]
    if kind is torch.dtype:
        return ["dtype", str(value).rpartition(".")[2]]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return ["array" if isinstance(value, np.ndarray) else "scalar", value.dtype.str, list(value.shape), value.tobytes().hex()]
    raise InputError(
        f"{what} is a {kind.__module__}.{kind.__qualname__}, which does not travel: pass None, numbers, strings, bytes, lists, tuples, sets, "
        "dictionaries, tensors or arrays",
        "object",
    )


def _made(of: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if not isinstance(of, list):
        return of
    kind, *rest = of
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_made(one, tensors) for one in rest[0]])
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]([(_made(key, tensors), _made(one, tensors)) for key, one in rest[0]])
    if kind == "tensor":
        return next(tensors)
    return _PLAIN[kind](*rest)


def _array(dtype: str, shape: list[int], data: str) -> Any:
    raw = np.frombuffer(bytes.fromhex(data), np.dtype(dtype))
    return raw[: math.prod(shape)].reshape(shape).copy()


_PLAIN: dict[str, Callable[..., Any]] = {
    "int": int,
    "float": float.fromhex,
    "complex": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "dtype": lambda name: getattr(torch, name),
    "array": _array,
    "scalar": lambda *of: _array(*of)[()],
}
