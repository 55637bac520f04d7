"""Replaces `byteps.tensorflow.keras`: everything comes from `gradwire.tensorflow.keras`."""

from gradwire.tensorflow._unchanged import Average, Sum, broadcast_variables, is_initialized, missing
from gradwire.tensorflow._unchanged import keras_optimizer as DistributedOptimizer
from gradwire.tensorflow.keras import Compression, init, local_rank, local_size, rank, shutdown, size
from gradwire.tensorflow.keras._unchanged import broadcast, load_model, push_pull

from . import callbacks

__getattr__ = missing(__name__)
