"""An optimizer of Keras 3 that averages gradients over workers before it applies them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ..client import Client
from ..errors import InputError
from ._compression import Compression, codec_of
from ._errors import as_tensorflow_errors
from ._tape import Averaging

# The attributes of an optimizer that averages gradients, and of one whose parameters are at the servers.
_AVERAGING, PARAMETERS = "_gradwire", "_gradwire_parameters"
_classes: dict[type, type] = {}


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    average: bool = True,
    backward_passes_per_step: int = 1,
    *,
    prefix: str = "gradient.",
    client: Client | None = None,
) -> Any:
    """Makes an optimizer of Keras 3 average gradients over all workers in `apply` and `apply_gradients`, and returns it: it is the same
    object with its state, and is saved with a model as the optimizer that it was. Clipping and weight decay see the means.

    Sparse gradients (`tf.IndexedSlices`), as those of an Embedding are, travel as rows and indices, or as dense tensors with
    `sparse_as_dense=True`. `name` and the devices have no effect. A variable without a gradient must have none on all workers. Tensors are
    named by `prefix`, and by the paths and shapes of the variables, which must be the same on all workers. For mixed precision wrap the
    scaling optimizer: `DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))`."""
    with as_tensorflow_errors():
        _refuse(optimizer, backward_passes_per_step)
        codec_of(compression)
    keep_keras_from_compiling()
    kind = type(optimizer)
    if kind not in _classes:
        _classes[kind] = _averaging_class(kind)
    optimizer.__class__ = _classes[kind]
    object.__setattr__(optimizer, _AVERAGING, Averaging(prefix, compression, sparse_as_dense, average, client))
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer exchanges gradients, itself or inside a LossScaleOptimizer."""
    some = [optimizer, getattr(optimizer, "inner_optimizer", None)]
    return any(hasattr(one, attribute) for one in some for attribute in (_AVERAGING, PARAMETERS))


def _refuse(optimizer: Any, passes: int) -> None:
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"Keras uses the backend {keras.backend.backend()}: set KERAS_BACKEND=tensorflow before Keras is imported", "backend"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InputError(
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__} is no optimizer of Keras 3: pass one of keras.optimizers, or "
            "use DistributedGradientTape",
            "optimizer",
        )
    if is_distributed(optimizer):
        raise InputError("the optimizer averages gradients already: call DistributedOptimizer once for each optimizer", "optimizer")
    if passes != 1:
        raise InputError(
            "backward_passes_per_step must be 1: pass gradient_accumulation_steps to the Keras optimizer, which averages the gradients "
            "of that many steps",
            "backward_passes",
        )


def _averaging_class(kind: type) -> type:
    """A subclass of an optimizer's class. Keras saves it under the name of the class itself."""

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        averaging: Averaging | None = getattr(self, _AVERAGING, None)
        if averaging is not None and len(grads):
            refuse_scaling(sys._getframe(1).f_code.co_name, "pass DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)) to model.compile")
            grads = list(grads)
            variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
            grads = averaging.means(grads, variables)
        return kind.apply(self, grads, trainable_variables)  # type: ignore[attr-defined]

    names = {"apply": apply, "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), names)


def refuse_scaling(caller: str, fix: str) -> None:
    """Keras's LossScaleOptimizer decides about the step by this worker's own gradients: if only some are infinite, some workers would
    wait for the others, which skip the step."""
    if caller == "_stateful_handle_finite_grads":
        raise tf.errors.InvalidArgumentError(
            None, None, f"a LossScaleOptimizer around this optimizer would skip steps on some workers only: {fix}"
        )


def keep_keras_from_compiling() -> None:
    """`model.compile(jit_compile="auto")`, the default, compiles by XLA where there is a GPU; with an optimizer that averages, it does
    not. Without this private method of Keras, users get the error that names the flag."""
    resolve = getattr(keras.Model, "_resolve_auto_jit_compile", None)
    if resolve is None or hasattr(resolve, _AVERAGING):
        return

    def resolved(self: Any) -> bool:
        return False if is_distributed(getattr(self, "optimizer", None)) else bool(resolve(self))

    setattr(resolved, _AVERAGING, True)
    keras.Model._resolve_auto_jit_compile = resolved
