"""Training that continues after a worker has failed: the worker that replaces it gets the state of training from another worker, and
takes part in the step that the others are in."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

from ..client import Client
from ..errors import InputError
from ._average import Averager
from ._broadcast import broadcast, broadcast_value, tensors_in
from ._exchange import follow
from ._model import DistributedDataParallel
from ._optimizer import DistributedOptimizer
from ._state import state_of


def resume(trained: DistributedOptimizer | DistributedDataParallel, *state: Any) -> int:
    """Gives all workers the same state, and returns the number of the first step. All workers call it once, before the first step. `trained`
    and `state`: the wrapper of the script, the model, and other objects with `state_dict` and `load_state_dict`, such as the optimizer of a
    DistributedDataParallel, learning rate schedulers and a GradScaler.

    In a new job all get the state of rank 0, and the result is 0. A worker that was restarted (`cluster.worker_loss` "wait") gets the state
    that another worker has before the step that it is in, and the result is the number of steps that were before it: for a
    DistributedOptimizer the calls of `synchronize`, which `step` calls once; for a DistributedDataParallel the backward passes that have
    averaged gradients. The others repeat this step with the new worker, so that the weights are those of an undisturbed training. With a
    DistributedDataParallel, buffers are those of rank 0 after each backward instead of before each forward.

        optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        for step in range(gw.resume(optimizer, model), steps):
            ...

    With a wrapped model:

        model = gw.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(gw.resume(model, optimizer), steps):
            ...
    """
    parts = (trained, *state)
    averager, client = _averager_of(trained)
    prefix, kept = f"{averager.prefix}state.", state_of(client)
    if kept.resumes:
        # A worker that was restarted would wait in the first wrapper's round, and the others in that of another one.
        raise InputError("resume was called before: call it once, with the one wrapper of the script", "resume")
    if client._has_rejoined and not client._is_awaited:
        # It counts from a round on that may be another one for each tensor, and a step needs the same round of all of them.
        raise InputError('resume cannot continue a training with cluster.worker_loss "continue": set "wait"', "resume")
    if averager.steps or averager.has_sent:
        raise InputError("call resume before the first step", "resume")
    if len(kept.order.models if kept.order is not None else ()) > 1:
        # Workers compare which of the models they are at, in rounds that a worker that was restarted would have to find.
        raise InputError("resume supports one DistributedDataParallel in a process, and this one has made several", "resume")
    if any(isinstance(one, torch.optim.LBFGS) for one in state):
        raise InputError(
            "resume does not support LBFGS: it calls backward within its step, where its state is incomplete and no other worker can continue "
            "from it",
            "resume",
        )
    kept.resumes = True
    if isinstance(trained, DistributedDataParallel):
        trained._carry_buffers()
    modules = {at: one for at, one in enumerate(parts) if isinstance(one, nn.Module)}
    others = [one for one in parts if not isinstance(one, nn.Module)]

    def copy(root: int, takes: bool, initial: bool = False) -> None:
        of_modules = [(f"{at}.{name}", one) for at, module in modules.items() for name, one in _tensors_of(module).items()]
        seen = {id(one) for _, one in of_modules}
        named = [*of_modules, *((name, p) for name, p in averager.names.items() if id(p) not in seen)]
        # Autograd has seen the tensors of a worker that has the state already.
        broadcast([(name, one if takes else _before(one, averager)) for name, one in tensors_in(named, prefix)], client, root, initial)
        mine = [averager.steps, [one.state_dict() for one in others]] if client.rank == root else None
        got = broadcast_value(mine, root, f"{prefix}value.", client, "the state of training", initial)
        if takes and client.rank != root:
            averager.steps, of_others = got
            for one, values in zip(others, of_others):
                one.load_state_dict(values)

    averager.transfer = copy
    if client._has_rejoined and client.resume(averager.tensors()):
        kept.follows = True
        # Those that the script has used before this call, and those that it uses later.
        for one in [*kept.broadcasts.values(), *(exchange.declared for exchange in kept.names.exchanges.values())]:
            follow(client, one)
        averager.receive()
    else:
        copy(0, True, True)
    return averager.steps


def _averager_of(trained: Any) -> tuple[Averager, Client]:
    """The averager of the one wrapper. Raises InputError for what cannot be resumed."""
    is_wrapper = isinstance(trained, (DistributedOptimizer, DistributedDataParallel))
    averager: Averager | None = trained._averager if is_wrapper else None
    if averager is None:
        raise InputError("resume needs a DistributedOptimizer in mode sync, or a DistributedDataParallel, as its first argument", "resume")
    client = trained._client
    # A wrapper in a cycle would be gone on some workers only.
    gc.collect()
    wrappers = [one for one in (enrolled.wrapper() for enrolled in state_of(client).uneven.values()) if one is not None]
    has_model = any(isinstance(one, DistributedDataParallel) for one in wrappers)
    if has_model and (len(wrappers) > 1 or not isinstance(trained, DistributedDataParallel)):
        # A worker that was restarted would have to find out in whose round the others wait.
        raise InputError(
            "resume of a DistributedDataParallel supports no other wrapper beside it: make one DistributedDataParallel and no "
            "DistributedOptimizer, and pass it first",
            "resume",
        )
    return averager, client


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers, also those that `state_dict` leaves out."""
    return {**dict(module.named_buffers()), **module.state_dict(keep_vars=True)}


def _before(tensor: torch.Tensor, averager: Averager) -> torch.Tensor:
    """A copy of a tensor of the model, as it was before the step."""
    return (tensor if averager.along is None else averager.along.before(tensor)).detach().clone()
