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
from gradwire.tensorflow._unchanged import byteps_broadcast as broadcast

# Ours: those of this module are others.
del keras, resume  # noqa: F821

from . import keras

__getattr__ = missing(__name__)
