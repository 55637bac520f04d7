"""Gradwire: a parameter server for numpy, torch and JAX.

    import gradwire, numpy as np

    with gradwire.connect() as client:
        weights = client.declare("weights", (784, 10), optimizer=gradwire.SGD(0.1, momentum=0.9))
        client.init(weights, np.zeros((784, 10), np.float32))
        new = client.push_pull(weights, gradient).wait()

`gradwire.torch`, `gradwire.jax` and `gradwire.mxnet` integrate these frameworks. `gradwire.launch` starts a cluster on
this machine.
"""

from __future__ import annotations

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
from .optimizers import (
    FTRL,
    LAMB,
    SGD,
    AdaGrad,
    Adam,
    AdamW,
    Assign,
    CosineDecay,
    ExponentialDecay,
    LinearDecay,
    Optimizer,
    RMSProp,
    Schedule,
    StepDecay,
    Sum,
)
from .tables import Table, Uniform

__all__ = [
    "AdaGrad",
    "Adam",
    "AdamW",
    "Assign",
    "BFloat16",
    "Client",
    "ClosedError",
    "Cluster",
    "Codec",
    "ConnectError",
    "CosineDecay",
    "DeadlineError",
    "Declaration",
    "DeclareError",
    "Dither",
    "Error",
    "ExponentialDecay",
    "FTRL",
    "Float16",
    "ForkError",
    "Handle",
    "InputError",
    "LAMB",
    "LaunchError",
    "LinearDecay",
    "Link",
    "MemberDiedError",
    "OneBit",
    "OperationError",
    "Optimizer",
    "Pending",
    "PoolError",
    "RMSProp",
    "RandomK",
    "Reply",
    "SGD",
    "Schedule",
    "SettingError",
    "StepDecay",
    "Sum",
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
