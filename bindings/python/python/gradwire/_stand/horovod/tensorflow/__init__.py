"""Replaces `horovod.tensorflow`: everything comes from `gradwire.tensorflow`."""

from gradwire._absent import *  # noqa: F403
from gradwire.tensorflow import *  # noqa: F403
from gradwire.tensorflow._unchanged import (
    Average,
    DistributedGradientTape,
    DistributedOptimizer,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_variables,
    cross_rank,
    cross_size,
    is_initialized,
    missing,
)

# Ours: those of this module are others.
del keras  # noqa: F821

from . import keras

__getattr__ = missing(__name__)
