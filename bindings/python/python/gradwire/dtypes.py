"""Element types: Gradwire's names, and those of numpy, torch and JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._native import elements
from .errors import InputError

#: Gradwire's names of the types of numpy (and ml_dtypes).
ELEMENTS: dict[str, str] = dict(elements())
_NAMES = {element: name for name, element in ELEMENTS.items()}


def element_of(dtype: Any) -> str:
    """Returns Gradwire's name ("f32", "bf16", …) of a type that is given by name, or as a type of numpy, torch or JAX."""
    name = _name_of(dtype)
    if name in _NAMES:
        return name
    if name not in ELEMENTS:
        raise InputError(f"unsupported dtype {dtype}: use one of {', '.join(ELEMENTS)}", "wrong_dtype")
    return ELEMENTS[name]


def _name_of(dtype: Any) -> str:
    text = dtype if isinstance(dtype, str) else str(dtype)
    # str(torch.float32) is "torch.float32".
    text = text[len("torch.") :] if text.startswith("torch.") else text
    if text in ELEMENTS or text in _NAMES:
        return text
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return text


def numpy_of(element: str) -> np.dtype[Any]:
    """Returns the numpy dtype for one of Gradwire's names. bfloat16 is the type of ml_dtypes, or uint16 without ml_dtypes."""
    if element != "bf16":
        return np.dtype(_NAMES[element])
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("uint16")
    halves: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return halves
