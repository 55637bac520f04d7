"""Replaces `byteps.tensorflow`: everything comes from `gradwire.tensorflow`."""

from gradwire.tensorflow import *  # noqa: F403
from gradwire.tensorflow._unchanged import (
    Average,
    DistributedGradientTape,
    DistributedOptimizer,
    Sum,
    broadcast_variables,
    is_initialized,
    missing,
    push_pull,
)

from . import keras

__getattr__ = missing(__name__)
