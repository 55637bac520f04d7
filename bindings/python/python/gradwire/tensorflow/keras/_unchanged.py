"""Functions and callbacks of the Keras modules of Horovod and BytePS whose arguments differ from ours. Unchanged scripts get them under
`python -m gradwire.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .. import _ops, _unchanged
from .._compression import Compression
from . import callbacks
from . import load_model as _load_model


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    """The average (or sum) over all workers."""
    return _unchanged.allreduce(
        value, average, compression=compression, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, name=name
    )


def push_pull(value: Any, name: str | None = None, average: bool | None = True) -> Any:
    """The average (or sum) over all workers."""
    return _unchanged.push_pull(value, average=average, name=name)


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all workers after one another. Gradients are not propagated."""
    return _unchanged.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of `root_rank`."""
    return _ops.broadcast(value, root_rank, name)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """As ours, with the optimizers' classes apart. `legacy_opts` has no effect: Keras 3 has none."""
    _unchanged.refuse_async()
    classes = {one.__name__: one for one in custom_optimizers or ()}
    return _load_model(filepath, classes | (custom_objects or {}), compression)


class BytePSScheduleCallback(callbacks.LearningRateScheduleCallback):
    """`LearningRateScheduleCallback` of BytePS: the initial rate comes last, and a number is a factor."""

    def __init__(
        self,
        multiplier: float | Callable[[float], float],
        start_epoch: float = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        initial_lr: float | None = None,
    ) -> None:
        constant = None if callable(multiplier) else multiplier
        factor = multiplier if callable(multiplier) else lambda _: constant
        staircase = staircase or constant is not None
        super().__init__(initial_lr, factor, start_epoch, end_epoch, staircase, momentum_correction, steps_per_epoch)


class BytePSWarmupCallback(callbacks.LearningRateWarmupCallback):
    """`LearningRateWarmupCallback` of BytePS: the initial rate comes last."""

    def __init__(
        self,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        initial_lr: float | None = None,
    ) -> None:
        super().__init__(initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)
