"""Replaces `byteps.tensorflow.keras`: everything comes from `gradwire.tensorflow.keras`."""

from gradwire.tensorflow._unchanged import Average, DistributedOptimizer, Sum, is_initialized, push_pull
from gradwire.tensorflow.keras import (
    Compression,
    broadcast,
    broadcast_variables,
    init,
    load_model,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

from . import callbacks
