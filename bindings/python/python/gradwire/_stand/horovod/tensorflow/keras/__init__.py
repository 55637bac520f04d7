"""Replaces `horovod.tensorflow.keras`: everything comes from `gradwire.tensorflow.keras`."""

from gradwire._absent import *  # noqa: F403
from gradwire.tensorflow._unchanged import Average, Sum, broadcast_variables, cross_rank, cross_size, is_initialized, missing
from gradwire.tensorflow._unchanged import keras_optimizer as DistributedOptimizer
from gradwire.tensorflow.keras import Compression, init, local_rank, local_size, rank, shutdown, size
from gradwire.tensorflow.keras._unchanged import allgather, allreduce, broadcast, load_model

from . import callbacks

__getattr__ = missing(__name__)
