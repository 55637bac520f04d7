"""Gradwire for TensorFlow 2 and Keras 3: an optimizer and a gradient tape that average gradients, named tensors, broadcasts, and callbacks
for Keras (`gradwire.tensorflow.keras.callbacks`).

    import gradwire.tensorflow as gw

    gw.init()
    model.compile(optimizer=gw.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    model.fit(data, callbacks=[gw.keras.callbacks.BroadcastGlobalVariablesCallback(0)])

Servers average the gradients of all workers. Native operations of TensorFlow copy each tensor once into registered memory; the result is
used where it has landed. `report()` lists the tensors with their copies. XLA (`jit_compile=True`) has no kernels for these operations.

Errors are `tf.errors` with Gradwire's text.

Every function also accepts a client of your own: `client=gradwire.connect()`.
"""

from __future__ import annotations

from .._extras import require

require("gradwire.tensorflow", "keras", "tensorflow", needs="TensorFlow 2.16 or newer with Keras 3", extra="tensorflow")

from . import keras
from ._compression import Compression
from ._gather import allgather
from ._ops import broadcast, broadcast_variables, pull, push, push_pull, push_pull_all
from ._optimizer import DistributedOptimizer
from ._parameters import ParameterServerOptimizer, resume
from ._process import init, initialized, local_rank, local_size, rank, shutdown, size
from ._report import Report, TensorReport, report
from ._tape import DistributedGradientTape

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "ParameterServerOptimizer",
    "Report",
    "TensorReport",
    "allgather",
    "broadcast",
    "broadcast_variables",
    "init",
    "initialized",
    "keras",
    "local_rank",
    "local_size",
    "pull",
    "push",
    "push_pull",
    "push_pull_all",
    "rank",
    "report",
    "resume",
    "shutdown",
    "size",
]
