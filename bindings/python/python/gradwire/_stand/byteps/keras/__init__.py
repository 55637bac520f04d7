"""Replaces `byteps.keras`, which has the names of `byteps.tensorflow.keras`."""

from byteps.tensorflow.keras import *  # noqa: F403

from . import callbacks
