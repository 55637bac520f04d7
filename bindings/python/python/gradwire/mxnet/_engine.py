"""What of MXNet's library the native half needs: addresses of functions, and how its version calls back."""

from __future__ import annotations

import ctypes
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError

from .. import _native

_FUNCTIONS = (
    "MXEnginePushAsyncND",
    "MXShallowCopyNDArray",
    "MXNDArrayFree",
    "MXNDArrayToDLPack",
    "MXNDArrayCallDLPackDeleter",
    "MXGetLastError",
)
#: std::runtime_error(const char *), which is how the engine takes failures.
_RUNTIME_ERROR = "_ZNSt13runtime_errorC1EPKc"

#: Releases that this was tried with. Others have these functions, too, some of them with other arguments: a crash.
TRIED = ("1.9.1", "2.0.0beta1")
#: Is it MXNet 2?
IS_2 = int(mx.__version__.split(".")[0]) >= 2


def _address(library: ctypes.CDLL, name: str) -> int:
    try:
        function = getattr(library, name)
    except AttributeError as error:
        text = f"gradwire: unsupported MXNet {mx.__version__} (no function {name}): use one of {', '.join(TRIED)}"
        raise MXNetError(text) from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def start(client: Any) -> _native.MxEngine:
    """The native half for a client."""
    if mx.__version__ not in TRIED:
        raise MXNetError(f"gradwire: unsupported MXNet {mx.__version__}: use one of {', '.join(TRIED)}")
    addresses = [_address(_LIB, name) for name in _FUNCTIONS]
    addresses.append(_address(ctypes.CDLL("libstdc++.so.6"), _RUNTIME_ERROR))
    return _native.MxEngine(client, addresses, IS_2)
