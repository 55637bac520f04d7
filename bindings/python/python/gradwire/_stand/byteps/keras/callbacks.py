"""Replaces `byteps.keras.callbacks`, which has the names of `byteps.tensorflow.keras.callbacks`."""

from byteps.tensorflow.keras.callbacks import *  # noqa: F403
from gradwire.tensorflow._unchanged import missing

__getattr__ = missing(__name__)
