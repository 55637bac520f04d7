"""Replaces `byteps.torch.parallel`."""

from gradwire.torch.parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
