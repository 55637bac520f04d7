"""Training that continues after a worker has failed. Weights and the optimizer's state are on the servers, so the worker that replaces a
failed one needs only the step that the others are in, and the weights before it."""

from __future__ import annotations

from typing import Any

from mxnet.base import MXNetError
from mxnet.gluon import Trainer

from ._store import Store, as_mxnet


@as_mxnet
def resume(trainer: Any, batch_size: float | None = None) -> int:
    """Returns the number of the first step. All workers call it once, before the first step, with gluon's `Trainer` and the batch size
    that they pass to `step`, or with a store whose keys are initialised and whose optimizer is set.

    In a new job the result is 0. In a worker that was restarted (`cluster.worker_loss` "wait") it is the number of complete steps, and
    arrays that the store has filled (those of a Trainer are the parameters) get the weights after the last of them. What the failed
    process had contributed to the next step counts once. Parameters must have their shapes: with deferred initialisation run a forward
    pass first. If the script changes the learning rate by itself, it must set it again after `resume`.

        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_sync")
        for step in range(gradwire.mxnet.resume(trainer, batch_size), steps):
            ...
    """
    store = _store_of(trainer, batch_size)
    parameters = enumerate(trainer._params) if isinstance(trainer, Trainer) else ()
    return store.resume(frozenset(index for index, one in parameters if one.grad_req == "null"))


def _store_of(trainer: Any, batch_size: float | None) -> Store:
    """The store of a trainer, with all keys."""
    store = trainer
    if isinstance(trainer, Trainer):
        unknown = [one.name for one in trainer._params if one._deferred_init]
        if unknown:
            raise MXNetError(
                f"gradwire: resume needs parameters with shapes, and {', '.join(unknown[:3])} have none yet: run a forward pass before it, "
                "on every worker"
            )
        if not trainer._kv_initialized:
            if not batch_size:
                raise MXNetError("gradwire: resume of a Trainer needs the batch size: pass what the script passes to trainer.step")
            # As `step` does it: servers divide by it, and a Trainer does not change it later.
            trainer._optimizer.rescale_grad = trainer._scale / batch_size
            trainer._init_kvstore()
        if trainer._params_to_init:
            trainer._init_params()
        store = trainer._kvstore
        if isinstance(store, Store) and not trainer._update_on_kvstore:
            raise MXNetError(
                "gradwire: resume needs the optimizer on the servers, which keep its state: make the Trainer with update_on_kvstore=True"
            )
    if not isinstance(store, Store):
        raise MXNetError('gradwire: resume needs a store of Gradwire, such as mx.kv.create("dist_gradwire"), or a gluon Trainer that uses one')
    return store
