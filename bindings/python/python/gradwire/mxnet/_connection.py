"""The cluster of this process, shared by its stores, and joined when the first of them is made; and what of MXNet's library the native
half needs: addresses of functions, and how its version calls back."""

from __future__ import annotations

import atexit
import ctypes
import threading
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, MXNetError

import gradwire

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


class Connection:
    """A client with its part in MXNet's engine."""

    def __init__(self) -> None:
        self.client = gradwire.connect()
        self.engine = start(self.client)
        self._stores = 0
        #: Whether a store has resumed.
        self.has_resumed = False

    def number_store(self) -> int:
        """Stores are numbered as they are made, which is in one order on every worker: their keys are apart."""
        self._stores += 1
        return self._stores - 1


_lock = threading.Lock()
_connection: Connection | None = None


def get() -> Connection:
    """The process's connection."""
    global _connection
    with _lock:
        if _connection is None:
            _connection = Connection()
            # Before the client leaves, which it does when its own, earlier registered function is called.
            atexit.register(_finish)
        return _connection


def _finish() -> None:
    # Operations that the engine has still to begin need the client.
    try:
        mx.nd.waitall()
    except MXNetError:
        # Whoever waited for it was told.
        pass


def client() -> Any:
    """The process's client."""
    return get().client
