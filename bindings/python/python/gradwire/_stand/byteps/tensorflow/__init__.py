"""Replaces `byteps.tensorflow`: everything comes from `gradwire.tensorflow`."""

from gradwire.tensorflow import *  # noqa: F403
from gradwire.tensorflow._unchanged import (
    Average,
    DistributedGradientTape,
    DistributedOptimizer,
    Sum,
    is_initialized,
    push_pull,
)

from . import keras
