"""Gradwire under torch: an optimizer wrapper, models whose gradients are averaged, a communication hook for torch's own
DistributedDataParallel, broadcasts, and tensors by name.

Gradients are averaged over workers by servers (rule `Assign(average=True)`), in buffers of the library's memory. What lies
on a CUDA device goes through pinned memory.

The names are those of `byteps.torch`, so that its scripts need one other line:

    import gradwire.torch as bps

    bps.init()
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())

Everything takes a client of your own, too: `client=gradwire.connect()`. Broadcasts hold what JSON and tensors hold; nothing
that is received is ever executed.
"""

from ._broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._compression import Compression
from ._exchange import MEAN, empty
from ._hook import DdpState, ddp_hook
from ._model import DistributedDataParallel
from ._ops import (
    Operation,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
    synchronize,
)
from ._optimizer import DistributedOptimizer
from ._process import init, initialized, local_rank, local_size, rank, shutdown, size

__all__ = [
    "MEAN",
    "Compression",
    "DdpState",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Operation",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "declare",
    "empty",
    "init",
    "initialized",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
