"""Replaces `horovod.torch`: everything comes from `gradwire.torch`."""

from . import compression, mpi_ops
from .mpi_ops import *  # noqa: F403
from .mpi_ops import __getattr__
