"""Replaces `horovod.keras`, which has the names of `horovod.tensorflow.keras`."""

from horovod.tensorflow.keras import *  # noqa: F403

from . import callbacks
