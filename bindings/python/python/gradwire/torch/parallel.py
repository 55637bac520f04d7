"""The module in which BytePS scripts look for DistributedDataParallel."""

from ._model import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
