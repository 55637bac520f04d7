"""Replaces `horovod.keras`, which has the names of `horovod.tensorflow.keras`."""

from gradwire.tensorflow._unchanged import missing
from horovod.tensorflow.keras import *  # noqa: F403

from . import callbacks

__getattr__ = missing(__name__)
