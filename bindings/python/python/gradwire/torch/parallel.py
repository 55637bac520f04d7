"""Where BytePS's scripts look for DistributedDataParallel."""

from ._model import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
