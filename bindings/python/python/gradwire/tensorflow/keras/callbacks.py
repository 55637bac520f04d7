"""Callbacks for `model.fit` of Keras 3, with the names that scripts for Horovod and BytePS use."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...client import Client
from ...errors import InputError
from .._errors import as_tensorflow_errors
from .._ops import broadcast_variables, push_pull
from .._process import client_or_default

__all__ = ["BroadcastGlobalVariablesCallback", "LearningRateWarmupCallback", "MetricAverageCallback"]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies the weights of the model and the variables of the optimizer from `root_rank` to all workers, once: before the first batch,
    or after it if the model is not built before. Call `model.build`, or give it an `Input`, so that the first step begins with the same
    weights on all workers."""

    def __init__(self, root_rank: int = 0, device: str = "", *, client: Client | None = None) -> None:
        super().__init__()
        self._root, self._client, self._is_done = root_rank, client, False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcasts if the model is built."""
        if not self.model.built:
            return
        if not self.model.optimizer.built:
            # As its first step does.
            self.model.optimizer.build(self.model.trainable_variables)
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch, if that has not happened before it."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self._is_done:
            return
        broadcast_variables(self.model.weights, self._root, "model.", client=self._client)
        broadcast_variables(self.model.optimizer.variables, self._root, "optimizer.", client=self._client)
        self._is_done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces the metrics of each epoch by their means over all workers. List it before callbacks that read them, such as
    ReduceLROnPlateau. All workers must have the same metrics."""

    def __init__(self, device: str = "", *, client: Client | None = None) -> None:
        super().__init__()
        self._client = client

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages the metrics."""
        names = sorted(name for name, value in (logs or {}).items() if np.isscalar(value) or np.ndim(value) == 0)
        if not names:
            return
        mine = tf.constant([float(logs[name]) for name in names], tf.float64)
        means = push_pull(mine, "metrics." + ",".join(names), client=self._client)
        logs.update(zip(names, means.numpy().tolist()))


class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate after each batch, linearly over `warmup_epochs` epochs: from `initial_lr` divided by the number of workers,
    which is the rate of one process, to `initial_lr`. `momentum_correction` has no effect: the momentum of a Keras optimizer is a constant
    of the compiled step."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        client: Client | None = None,
    ) -> None:
        super().__init__()
        self._initial, self._epochs, self._steps = initial_lr, warmup_epochs, steps_per_epoch
        self._verbose, self._client, self._epoch = verbose, client, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate of the batch."""
        if self._epoch >= self._epochs:
            return
        steps = self._steps or (self.params or {}).get("steps")
        with as_tensorflow_errors():
            workers = client_or_default(self._client).workers
            if not steps:
                raise InputError("cannot determine the number of steps in an epoch: pass steps_per_epoch=…", "steps_per_epoch")
        self.model.optimizer.learning_rate = self._rate(self._epoch + batch / steps, workers)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Sets the full learning rate at the end of the warm-up."""
        if self._epochs <= epoch + 1 < self._epochs + 1:
            self.model.optimizer.learning_rate = self._initial
            if self._verbose:
                print(f"epoch {epoch + 1}: the learning rate has reached {self._initial:g}")

    def _rate(self, epoch: float, workers: int) -> float:
        done = min(epoch / self._epochs, 1.0)
        return self._initial * (1 + done * (workers - 1)) / workers
