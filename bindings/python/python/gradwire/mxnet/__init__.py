"""MXNet (1.9.1 and 2.0.0b1) over Gradwire: `mx.kv.create("gradwire")`, or "gradwire_async".

A key-value store as gluon's `Trainer`, `Module` and scripts use the distributed ones of MXNet's own: `init`, `push`,
`pull`, `pushpull`, `broadcast`, `row_sparse_pull`, `set_optimizer` and what belongs to them. `import gradwire.mxnet`
registers it; `python -m gradwire.run script.py` puts it in the place of "dist_sync" and its kin.
"""

from ._names import redirect, register
from ._store import Store

register()

__all__ = ["Store", "redirect", "register"]
