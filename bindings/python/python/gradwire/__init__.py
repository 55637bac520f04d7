"""Gradwire: a parameter server for numpy, torch, TensorFlow and JAX.

    import gradwire, numpy as np

    with gradwire.connect() as client:
        weights = client.declare("weights", (784, 10), optimizer=gradwire.SGD(0.1, momentum=0.9))
        client.init(weights, np.zeros((784, 10), np.float32))
        new = client.push_pull(weights, gradient).wait()

`gradwire.torch`, `gradwire.tensorflow`, `gradwire.jax` and `gradwire.mxnet` integrate these frameworks. `gradwire.launch`
starts a cluster on this machine.
"""

from __future__ import annotations

from . import optimizers
from ._native import Handle, Pending, Tensor, __version__, enable_logging, key_of_name, settings_reference
from .client import Client, Declaration, Link, Reply, connect, wait_all
from .codecs import BFloat16, Codec, Dither, Float16, OneBit, RandomK, TopK, TwoBit
from .errors import (
    ClosedError,
    ConnectError,
    DeadlineError,
    DeclareError,
    Error,
    ForkError,
    InputError,
    LaunchError,
    MemberDiedError,
    OperationError,
    PoolError,
    SettingError,
    WaitTimeout,
)
from .launching import Cluster, launch
from .optimizers import *
from .tables import Table, Uniform

__all__ = [
    "BFloat16",
    "Client",
    "ClosedError",
    "Cluster",
    "Codec",
    "ConnectError",
    "DeadlineError",
    "Declaration",
    "DeclareError",
    "Dither",
    "Error",
    "Float16",
    "ForkError",
    "Handle",
    "InputError",
    "LaunchError",
    "Link",
    "MemberDiedError",
    "OneBit",
    "OperationError",
    "Pending",
    "PoolError",
    "RandomK",
    "Reply",
    "SettingError",
    "Table",
    "Tensor",
    "TopK",
    "TwoBit",
    "Uniform",
    "WaitTimeout",
    "__version__",
    "connect",
    "enable_logging",
    "key_of_name",
    "launch",
    "settings_reference",
    "wait_all",
]
__all__ += optimizers.__all__
