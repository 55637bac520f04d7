"""MXNet (1.9.1 and 2.0.0b1) over Gradwire: `mx.kv.create("gradwire")`, or "gradwire_async".

A key-value store with the interface of MXNet's distributed stores, for gluon's `Trainer`, `Module` and scripts: `init`,
`push`, `pull`, `pushpull`, `broadcast`, `row_sparse_pull`, `set_optimizer` and related functions. `import gradwire.mxnet`
registers it; `python -m gradwire.run script.py` uses it instead of "dist_sync" and similar stores.
"""

from ._names import redirect, register
from ._store import Store

register()

__all__ = ["Store", "redirect", "register"]
