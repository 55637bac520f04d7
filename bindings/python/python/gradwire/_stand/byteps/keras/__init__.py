"""Replaces `byteps.keras`, which has the names of `byteps.tensorflow.keras`."""

from byteps.tensorflow.keras import *  # noqa: F403
from gradwire.tensorflow._unchanged import missing

from . import callbacks

__getattr__ = missing(__name__)
