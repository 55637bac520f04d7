"""Callbacks for `model.fit` of Keras 3, with the names that scripts for Horovod and BytePS use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...client import Client
from ...errors import InputError
from .._errors import as_tensorflow_errors
from .._ops import broadcast_variables, push_pull
from .._process import client_or_default

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


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


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr` times `multiplier(epoch)`, from `start_epoch` on and before `end_epoch`: at the beginning of
    each epoch, or with `staircase=False` for each batch, whose epoch has a fraction. If `multiplier` is a number, it is raised to the power
    `epoch - start_epoch`. `initial_lr=None` is the optimizer's rate when training begins. `momentum_correction` has no effect: the
    momentum of a Keras optimizer is a constant of the compiled step."""

    def __init__(
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float],
        start_epoch: float = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._initial, self._multiplier = initial_lr, multiplier
        self._start, self._end, self._staircase = start_epoch, math.inf if end_epoch is None else end_epoch, staircase
        self._steps_per_epoch, self._epoch = steps_per_epoch, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Remembers the optimizer's rate if no other was given."""
        if self._initial is None:
            self._initial = float(self.model.optimizer.learning_rate)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate of the batch."""
        if not self._start <= self._epoch < self._end or (self._staircase and batch > 0):
            return
        epoch = self._epoch if self._staircase else self._epoch + batch / self._steps()
        assert self._initial is not None
        self.model.optimizer.learning_rate = self._initial * self._factor(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the learning rate as `lr`."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _factor(self, epoch: float) -> float:
        if callable(self._multiplier):
            return self._multiplier(epoch)
        return float(self._multiplier ** (epoch - self._start))

    def _steps(self) -> int:
        steps = self._steps_per_epoch or (self.params or {}).get("steps")
        with as_tensorflow_errors():
            if not steps:
                raise InputError("cannot determine the number of steps in an epoch: pass steps_per_epoch=…", "steps_per_epoch")
        return int(steps)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate for each batch of `warmup_epochs` epochs, linearly: from `initial_lr` divided by the number of workers,
    which is the rate of one process, to `initial_lr`, which the last batch has. `initial_lr=None` is the optimizer's rate when training
    begins."""

    def __init__(
        self,
        initial_lr: float | None,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *,
        client: Client | None = None,
    ) -> None:
        super().__init__(initial_lr, self._warm, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._verbose, self._client = verbose, client

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the learning rate, and prints it at the end of the warm-up."""
        is_last = self._end <= epoch + 1 < self._end + 1
        if is_last:
            # With `steps_per_execution`, the last batches had a rate of earlier ones.
            self.model.optimizer.learning_rate = self._initial
        super().on_epoch_end(epoch, logs)
        if is_last and self._verbose and client_or_default(self._client).rank == 0:
            print(f"epoch {epoch + 1}: the learning rate has reached {self._initial:g}")

    def _warm(self, epoch: float) -> float:
        with as_tensorflow_errors():
            workers = client_or_default(self._client).workers
        done = min((epoch + 1 / self._steps()) / self._end, 1.0)
        return (1 + done * (workers - 1)) / workers
