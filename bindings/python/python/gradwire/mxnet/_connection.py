"""The cluster of this process, shared by its stores, and joined when the first of them is made."""

from __future__ import annotations

import atexit
import threading
from typing import Any

import mxnet as mx

import gradwire

from . import _engine


class Connection:
    """A client with its part in MXNet's engine."""

    def __init__(self) -> None:
        self.client = gradwire.connect()
        self.engine = _engine.start(self.client)
        self._stores = 0

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
    except mx.base.MXNetError:
        # Whoever waited for it was told.
        pass


def client() -> Any:
    """The process's client."""
    return get().client
