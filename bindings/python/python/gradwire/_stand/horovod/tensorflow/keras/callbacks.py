"""Replaces `horovod.tensorflow.keras.callbacks`."""

from gradwire.tensorflow._unchanged import missing
from gradwire.tensorflow.keras.callbacks import *  # noqa: F403

__getattr__ = missing(__name__)
