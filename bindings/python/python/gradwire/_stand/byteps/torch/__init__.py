"""Replaces `byteps.torch`: everything comes from `gradwire.torch`."""

from gradwire.torch import *  # noqa: F403
