"""Types of elements: Gradwire's own names, and what numpy, torch and JAX call them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InputError

#: Gradwire's name of each of numpy's (and ml_dtypes') types.
ELEMENTS: dict[str, str] = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
}
_NAMES = {element: name for name, element in ELEMENTS.items()}


def element_of(dtype: Any) -> str:
    """Gradwire's name ("f32", "bf16", …) of a type: a name, numpy's, torch's or JAX's."""
    name = _name_of(dtype)
    if name in _NAMES:
        return name
    if name not in ELEMENTS:
        raise InputError(f"arrays of {dtype} cannot be moved; use one of {', '.join(ELEMENTS)}", "wrong_dtype")
    return ELEMENTS[name]


def _name_of(dtype: Any) -> str:
    text = dtype if isinstance(dtype, str) else str(dtype)
    # torch.float32 says "torch.float32".
    text = text[len("torch.") :] if text.startswith("torch.") else text
    if text in ELEMENTS or text in _NAMES:
        return text
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return text


def numpy_of(element: str) -> np.dtype[Any]:
    """numpy's type for one of Gradwire's names. bfloat16 is ml_dtypes', and without it the bits as uint16."""
    if element != "bf16":
        return np.dtype(_NAMES[element])
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("uint16")
    halves: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return halves
