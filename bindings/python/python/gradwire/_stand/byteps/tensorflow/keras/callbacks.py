"""Replaces `byteps.tensorflow.keras.callbacks`."""

from gradwire.tensorflow.keras.callbacks import *  # noqa: F403
