"""The names that Keras scripts for Horovod and BytePS import: those of `gradwire.tensorflow`, callbacks, and `load_model`."""

from __future__ import annotations

from typing import Any

import keras as _keras

from .._compression import Compression
from .._ops import broadcast, broadcast_variables, push_pull
from .._optimizer import DistributedOptimizer
from .._process import init, initialized, local_rank, local_size, rank, shutdown, size
from . import callbacks

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast",
    "broadcast_variables",
    "callbacks",
    "init",
    "initialized",
    "load_model",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "shutdown",
    "size",
]


def load_model(filepath: Any, custom_objects: Any = None, compression: Any = Compression.none, sparse_as_dense: bool = False) -> Any:
    """Loads a model of Keras, whose optimizer then averages gradients over all workers, with the state that was saved."""
    model = _keras.models.load_model(filepath, custom_objects=custom_objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        DistributedOptimizer(optimizer, compression=compression, sparse_as_dense=sparse_as_dense)
        # Keras has decided on it for the optimizer that was loaded: where there is a GPU, it would compile.
        model.jit_compile = False
    return model
