"""Types of elements: Gradwire's own names, and what numpy, torch and JAX call them."""

from __future__ import annotations

from typing import Any

import numpy as np

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
    if isinstance(dtype, str) and dtype in _NAMES:
        return dtype
    # torch.float32 says "torch.float32".
    name = str(dtype).rpartition(".")[2] if str(dtype).startswith("torch.") else dtype
    if name != "bfloat16":
        name = getattr(dtype, "name", None) if not isinstance(name, str) else name
        if name != "bfloat16":
            try:
                name = np.dtype(dtype if name is None else name).name
            except TypeError:
                name = str(dtype)
    if name not in ELEMENTS:
        from .errors import InputError

        raise InputError(f"arrays of {dtype} cannot be moved; use one of {', '.join(ELEMENTS)}", "wrong_dtype")
    return ELEMENTS[name]


def numpy_of(element: str) -> np.dtype[Any]:
    """numpy's type for one of Gradwire's names. bfloat16 is ml_dtypes', and without it the bits as uint16."""
    if element != "bf16":
        return np.dtype(_NAMES[element])
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("uint16")
    return np.dtype(ml_dtypes.bfloat16)
