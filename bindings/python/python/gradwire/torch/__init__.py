"""Gradwire for torch: an optimizer wrapper, a model wrapper that averages gradients, a communication hook for torch's own
DistributedDataParallel, broadcasts, collective operations, named tensors, and training that continues after failures.

Servers average the gradients of all workers (rule `Assign(average=True)`). Gradients travel in registered memory; gradients
on a CUDA device are staged through pinned memory.

The names are those of `byteps.torch`, so that its scripts change in one line:

    import gradwire.torch as bps

    bps.init()
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())

Every function also accepts a client of your own: `client=gradwire.connect()`. Broadcasts transfer JSON values and tensors;
received data is never executed.
"""

from .._extras import require

require("gradwire.torch", "torch", needs="torch 1.13 or newer", extra="torch")

from ._broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._collectives import allgather, barrier, reduce
from ._compression import Compression
from ._exchange import MEAN, empty
from ._hook import DdpState, ddp_hook
from ._join import join
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
from ._resume import resume
from ._served import ServedOptimizer

__all__ = [
    "MEAN",
    "Compression",
    "DdpState",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Operation",
    "ServedOptimizer",
    "allgather",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "declare",
    "empty",
    "init",
    "initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "reduce",
    "resume",
    "shutdown",
    "size",
    "synchronize",
]
