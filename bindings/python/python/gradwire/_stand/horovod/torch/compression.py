"""Replaces `horovod.torch.compression`."""

from gradwire.torch import Compression

__all__ = ["Compression"]
