"""MXNet (1.9.1 and 2.0.0b1) over Gradwire: `mx.kv.create("gradwire")`, or "gradwire_async".

A key-value store with the interface of MXNet's distributed stores, for gluon's `Trainer`, `Module` and scripts: `init`,
`push`, `pull`, `pushpull`, `broadcast`, `row_sparse_pull`, `set_optimizer` and related functions. `import gradwire.mxnet`
registers it; `python -m gradwire.run script.py` uses it instead of "dist_sync" and similar stores.
"""

from __future__ import annotations

from .._extras import require

require("gradwire.mxnet", "mxnet", needs="MXNet 1.9.1 or 2.0.0b1", extra="mxnet")

from mxnet.kvstore import KVStoreBase

from ._resume import resume
from ._store import Store

__all__ = ["Store", "redirect", "register", "resume"]

#: Names of MXNet's own distributed stores, and whether each contribution counts by itself.
OF_MXNET = {
    "dist": False,
    "dist_sync": False,
    "dist_async": True,
    "dist_device_sync": False,
    "dist_sync_device": False,
    "dist_device_async": True,
    "dist_async_device": True,
    "p3": False,
}
#: Ours. Gluon takes no notice of a name without "dist" on one device.
OURS = {
    "gradwire": False,
    "gradwire_async": True,
    "dist_gradwire": False,
    "dist_gradwire_async": True,
}


def _put(name: str, is_async: bool, type_name: str) -> None:
    # Its own `register` takes a class's name for the store's.
    KVStoreBase.kv_registry[name] = type(name, (Store,), {"is_async": is_async, "type_name": type_name})


def register() -> None:
    """Makes `mx.kv.create("gradwire")` and its kin work. `import gradwire.mxnet` does it."""
    for name, is_async in OURS.items():
        _put(name, is_async, "gradwire_dist_async" if is_async else "gradwire_dist_sync")


def redirect() -> None:
    """`mx.kv.create("dist_sync")` and its kin make Gradwire's store from now on."""
    for name, is_async in OF_MXNET.items():
        _put(name, is_async, name)


register()
