"""Training that continues after a worker has failed: the worker that replaces it gets the state of training from another worker, and
takes part in the step that the others are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..errors import InputError
from ._average import Averager
from ._broadcast import broadcast, broadcast_value, tensors_in
from ._exchange import follow
from ._model import DistributedDataParallel
from ._optimizer import DistributedOptimizer
from ._state import state_of


def resume(optimizer: DistributedOptimizer, *state: Any) -> int:
    """Gives all workers the same state, and returns the number of the first step. All workers call it once, before the first step. `state`:
    the model, and other objects with `state_dict` and `load_state_dict`, such as learning rate schedulers and a GradScaler.

    In a new job all get the state of rank 0, and the result is 0. A worker that was restarted (`cluster.worker_loss` "wait") gets the state
    that another worker has before the step that it is in, and the result is the number of calls of `synchronize` that were before it;
    `step` calls it once. The others repeat this step with the new worker, so that the weights are those of an undisturbed training.
    A script with a DistributedDataParallel cannot be resumed, and gets an InputError.

        optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        for step in range(gw.resume(optimizer, model), steps):
            ...
    """
    averager = _averager_of(optimizer, state)
    client, prefix = optimizer.client, f"{averager.prefix}state."
    kept = state_of(client)
    if kept.resumes:
        # A worker that was restarted would wait in the first optimizer's round, and the others in that of another one.
        raise InputError("resume was called before: call it once, with the one DistributedOptimizer of the script", "resume")
    if client._has_rejoined and not client._is_awaited:
        # It counts from a round on that may be another one for each tensor, and a step needs the same round of all of them.
        raise InputError('resume cannot continue a training with cluster.worker_loss "continue": set "wait"', "resume")
    kept.resumes = True
    modules = {at: one for at, one in enumerate(state) if isinstance(one, nn.Module)}
    others = [one for one in state if not isinstance(one, nn.Module)]

    def copy(root: int, takes: bool, initial: bool = False) -> None:
        of_modules = [(f"{at}.{name}", one) for at, module in modules.items() for name, one in module.state_dict(keep_vars=True).items()]
        seen = {id(one) for _, one in of_modules}
        named = [*of_modules, *((name, p) for name, p in averager.names.items() if id(p) not in seen)]
        # Autograd has seen the tensors of a worker that has the state already.
        broadcast([(name, one if takes else one.detach().clone()) for name, one in tensors_in(named, prefix)], client, root, initial)
        mine = None
        if client.rank == root:
            mine = [averager.steps, optimizer.state_dict(), [one.state_dict() for one in others]]
        got = broadcast_value(mine, root, f"{prefix}value.", client, "the state of training", initial)
        if takes and client.rank != root:
            averager.steps, of_optimizer, of_others = got
            optimizer.load_state_dict(of_optimizer)
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


def _averager_of(optimizer: Any, state: Sequence[Any]) -> Averager:
    """Raises InputError for what cannot be resumed."""
    is_wrapper = isinstance(optimizer, DistributedOptimizer)
    wrappers = [one.wrapper() for one in state_of(optimizer.client).uneven.values()] if is_wrapper else []
    if any(isinstance(one, DistributedDataParallel) for one in (optimizer, *state, *wrappers)):
        # A worker that was restarted would also have to find the round of the buffers that the others wait in.
        raise InputError(
            "resume does not support gradwire.torch.DistributedDataParallel: pass the model itself, and average its gradients with "
            "DistributedOptimizer(optimizer, model.named_parameters())",
            "resume",
        )
    averager: Averager | None = optimizer._averager if is_wrapper else None
    if averager is None:
        raise InputError("resume needs a DistributedOptimizer in mode sync", "resume")
    return averager
