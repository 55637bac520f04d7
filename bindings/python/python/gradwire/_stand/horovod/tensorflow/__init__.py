"""Replaces `horovod.tensorflow`: everything comes from `gradwire.tensorflow`."""

from gradwire.tensorflow import *  # noqa: F403
from gradwire.tensorflow._unchanged import (
    Average,
    DistributedGradientTape,
    DistributedOptimizer,
    Sum,
    allgather,
    allreduce,
    cross_rank,
    is_initialized,
)

from . import keras
