"""Stands for `byteps.torch`: all of it is `gradwire.torch`."""

from gradwire.torch import *  # noqa: F403
