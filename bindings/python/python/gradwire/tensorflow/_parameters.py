"""An optimizer of Keras 3 whose parameters are at the servers: workers push gradients and pull weights, and the servers apply the rule."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .._native import Tensor
from .._rule import Rule
from ..client import Client, Declaration, wait_all
from ..errors import InputError
from . import _native_ops
from ._errors import as_tensorflow_errors
from ._exchange import Placed, Request, aligned, state_of
from ._graph import run, run_in_order
from ._optimizer import PARAMETERS, is_distributed, keep_keras_from_compiling, refuse_scaling
from ._process import client_or_default
from ._tape import names_of

_classes: dict[type, type] = {}
# Options of every optimizer that change what a step does, and the values with which they do nothing.
_UNUSED = {
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}


def _sgd(config: dict[str, Any]) -> Any:
    return {"sgd": {"momentum": config["momentum"], "nesterov": config["nesterov"] and config["momentum"] != 0}}


def _adam(config: dict[str, Any]) -> Any:
    _refuse_options(config, "Adam", amsgrad=False)
    return {"adam": {"beta1": config["beta_1"], "beta2": config["beta_2"], "epsilon": config["epsilon"]}}


def _ada_grad(config: dict[str, Any]) -> Any:
    _refuse_options(config, "Adagrad", initial_accumulator_value=0.0)
    return {"ada_grad": {"epsilon": config["epsilon"]}}


def _rms_prop(config: dict[str, Any]) -> Any:
    _refuse_options(config, "RMSprop", momentum=0.0, centered=False)
    return {"rms_prop": {"decay": config["rho"], "epsilon": config["epsilon"]}}


_RULES: dict[str, Callable[[dict[str, Any]], Any]] = {"SGD": _sgd, "Adam": _adam, "Adagrad": _ada_grad, "RMSprop": _rms_prop}


def ParameterServerOptimizer(
    optimizer: Any, mode: str | int | None = None, sparse_as_dense: bool = False, *, prefix: str = "parameters.", client: Client | None = None
) -> Any:
    """Makes an optimizer of Keras 3 apply its rule on the servers, and returns it. `apply` and `apply_gradients` push the gradients, and set
    the variables to the weights of the servers, which start with the variables of rank 0. In a custom loop without `tf.function` call
    `optimizer.build(model.trainable_variables)` before the first step.

    In mode "sync" (the default is `cluster.mode`) the servers average the gradients of all workers, and a step waits for all. In mode "async"
    each gradient is applied when it arrives; in mode N, workers are at most N steps apart. SGD, Adam, Adagrad and RMSprop are supported,
    with a learning rate that is a number. If it changes during training, rank 0's counts. Momentum and other state are at the servers, and
    not in the optimizer's variables. `prefix` and `sparse_as_dense` are as for `DistributedOptimizer`."""
    with as_tensorflow_errors():
        _rule_of(optimizer)
        if is_distributed(optimizer):
            raise InputError("the optimizer is wrapped already: wrap each optimizer once", "optimizer")
        parameters = Parameters(optimizer, mode, sparse_as_dense, prefix, client_or_default(client))
    keep_keras_from_compiling()
    kind = type(optimizer)
    if kind not in _classes:
        _classes[kind] = _serving_class(kind)
    optimizer.__class__ = _classes[kind]
    object.__setattr__(optimizer, PARAMETERS, parameters)
    return optimizer


def resume(optimizer: Any) -> int:
    """Returns the number of the first step. All workers call it once, with an optimizer of `ParameterServerOptimizer` that is built, before
    the first step.

    In a new job the result is 0, or the steps of the checkpoint that the servers have restored. In a worker that was restarted (`cluster.worker_loss` "wait") the variables have the weights of the
    servers, and the result is the number of steps that are complete: in mode "sync" of all workers, and what the failed process had
    contributed to the next one counts once; in other modes those that this worker had contributed to. If the script changes the learning
    rate by itself, it must set it again. A restarted worker that does not call it gets an error at its first step.

        optimizer = gw.ParameterServerOptimizer(keras.optimizers.SGD(0.1))
        optimizer.build(model.trainable_variables)
        for step in range(gw.resume(optimizer), steps):
            ...
    """
    with as_tensorflow_errors():
        parameters: Parameters | None = getattr(optimizer, PARAMETERS, None)
        if parameters is None:
            raise InputError("resume needs an optimizer of ParameterServerOptimizer: wrap it first", "resume")
        steps = parameters.resume()
    optimizer.iterations.assign(steps)
    return steps


def _serving_class(kind: type) -> type:
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        refuse_scaling(sys._getframe(1).f_code.co_name, "train in float32 or bfloat16")
        parameters: Parameters = getattr(self, PARAMETERS)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        grads = list(grads)
        if len(grads) != len(variables):
            raise ValueError(f"{len(grads)} gradients for {len(variables)} variables: call optimizer.build first, or pass the variables")
        pairs = [pair for pair in zip(grads, variables) if pair[0] is not None]
        parameters.step(self.learning_rate, [gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        self.iterations.assign_add(1)

    def build(self: Any, variables: Sequence[Any]) -> None:
        kind.build(self, variables)  # type: ignore[attr-defined]
        getattr(self, PARAMETERS).declare(list(variables))

    names = {"apply": apply, "build": build, "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), names)


def _rule_of(optimizer: Any) -> Rule:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InputError(f"{type(optimizer).__qualname__} is no optimizer of Keras 3: pass one of keras.optimizers", "optimizer")
    name, config = type(optimizer).__name__, optimizer.get_config()
    if name not in _RULES or not type(optimizer).__module__.startswith("keras."):
        raise InputError(f"servers have no rule for {name}: use {', '.join(_RULES)}, or DistributedOptimizer", "optimizer")
    _refuse_options(config, name, weight_decay=None, **_UNUSED)
    if isinstance(config["learning_rate"], dict):
        raise InputError(
            f"the learning rate of {name} is a schedule, which servers do not have: pass a number, and change it with a callback", "optimizer"
        )
    # In the form that Keras has, which is MXNet's.
    return Rule(_RULES[name](config), float(config["learning_rate"]), average=True)


def _refuse_options(config: dict[str, Any], name: str, **expected: Any) -> None:
    for option, value in expected.items():
        if config.get(option, value) not in (value, None):
            raise InputError(f"servers do not support {option}={config[option]!r} of {name}: leave it out, or use DistributedOptimizer", "optimizer")


@dataclass(frozen=True)
class _Known:
    """A variable at the servers."""

    tensor: Tensor
    #: For Python functions: registered memory for gradients and weights.
    room: Any
    #: For native operations: the number of the parameter, and its place.
    number: int | None = None
    placed: Placed | None = None


class Parameters:
    """Variables at the servers, by their names and shapes."""

    def __init__(self, optimizer: Any, mode: Any, sparse_as_dense: bool, prefix: str, client: Client) -> None:
        self._rule, self._mode, self._client = _rule_of(optimizer), mode, client
        taken, turn = state_of(client).prefixes, 1
        self._prefix = prefix
        while self._prefix in taken:
            # In the order in which optimizers are made, which is the same on all workers.
            turn += 1
            self._prefix = f"{prefix}({turn})."
        taken.add(self._prefix)
        self._sparse_as_dense = sparse_as_dense
        # The name of each variable, which is kept so that its number stays its own.
        self._names: dict[int, tuple[str, Any]] = {}
        self._known: dict[str, _Known] = {}
        # The learning rate that the servers have, if it is known.
        self._rate: float | None = self._rule.learning_rate
        # Steps that were complete when the variables were declared, and whether `resume` must be called before the next one.
        self._complete_steps, self._must_resume = 0, False
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Parameters:
        # A client is not copied.
        return self

    def resume(self) -> int:
        """The steps that were complete when the variables were declared."""
        if not self._names:
            raise InputError("call optimizer.build(model.trainable_variables) before resume", "resume")
        if self._client._has_rejoined and not self._client._is_awaited and (self._mode or self._client.mode) == "sync":
            raise InputError('resume cannot continue a training with cluster.worker_loss "continue": set "wait"', "resume")
        self._must_resume = False
        return self._complete_steps

    def step(self, rate: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Pushes gradients, and sets the variables to the servers' weights. In a graph it adds that to the graph."""
        is_new = self.declare(variables)
        if self._must_resume:
            raise tf.errors.FailedPreconditionError(
                None, None, f"this worker was restarted, and {self._complete_steps} steps are complete: call resume(optimizer) before the first step"
            )
        if is_new and tf.executing_eagerly():
            # Of other workers' variables than those of rank 0.
            raise tf.errors.FailedPreconditionError(
                None, None, "the gradients were computed before the variables were those of rank 0: call optimizer.build(model.trainable_variables) first"
            )
        names = [self._names[id(one)][0] for one in variables]
        sparse = [name for name, one in zip(names, gradients) if isinstance(one, tf.IndexedSlices)]
        if sparse and not self._sparse_as_dense:
            raise tf.errors.InvalidArgumentError(None, None, f"the gradient {sparse[0]!r} is sparse (tf.IndexedSlices): pass sparse_as_dense=True")
        dense = [tf.cast(tf.convert_to_tensor(one), variable.dtype) for one, variable in zip(gradients, variables)]
        for name, one, variable in zip(names, dense, variables):
            if not one.shape.is_compatible_with(variable.shape):
                raise tf.errors.InvalidArgumentError(
                    None, None, f"the gradient of {name!r} has shape {one.shape}, and the variable has {tuple(variable.shape)}: pass them in the same order"
                )
        for one, weights in zip(variables, self._weights(names, rate, dense)):
            one.assign(weights)

    def _weights(self, names: list[str], rate: Any, gradients: list[Any]) -> list[Any]:
        """What the servers have after these gradients."""
        if not _native_ops.are_used():
            return run_in_order(lambda *arrays: self._exchange(names, *arrays), [rate, *gradients], gradients)
        run_in_order(self._follow, [rate], [])
        requests = [
            Request("push_pull", name, priority=-at, client=self._client, parameter=self._known[name].number)
            for at, name in enumerate(names)
        ]
        return run(requests, gradients)

    def declare(self, variables: Sequence[Any]) -> bool:
        """Declares variables that are new, with the values of rank 0, and sets them to these. Returns whether there were any."""
        new = [one for one in variables if id(one) not in self._names]
        if new:
            with as_tensorflow_errors(), tf.init_scope():
                self._declare(new)
        return bool(new)

    def _declare(self, variables: list[Any]) -> None:
        for one in variables:
            if getattr(one, "constraint", None) is not None or getattr(one, "overwrite_with_gradient", False):
                raise InputError(f"servers do not support the constraint of {one.path}: leave it out, or use DistributedOptimizer", "optimizer")
        # Of earlier variables, too: two of one path and shape are two parameters.
        all_names = names_of(self._prefix, [*(one for _, one in self._names.values()), *variables])
        new = list(zip(all_names[len(self._names) :], variables))
        values = [np.ascontiguousarray(one.numpy()).reshape(one.shape) for one in variables]
        declared = self._client.declare_all(
            Declaration(name, value.shape, value.dtype, self._rule, None, self._mode, -at, backup_workers=0)
            for at, ((name, _), value) in enumerate(zip(new, values))
        )
        # Larger than 0 if this worker was restarted, or a checkpoint restored. The first pull brings the weights after these steps.
        steps = self._steps_of(declared)
        if steps:
            # The servers may have another learning rate than the script begins with.
            self._rate = None
        else:
            wait_all([self._client.init_start(tensor, value) for tensor, value in zip(declared, values)])
        if not self._names:
            self._complete_steps, self._must_resume = steps, bool(steps) and self._client._has_rejoined
        rooms = wait_all([self._client.pull(tensor) for tensor in declared])
        for tensor, room, (name, one) in zip(declared, rooms, new):
            # A copy, because TensorFlow might use the room's memory itself.
            one.assign(np.array(room))
            known = _Known(tensor, room)
            if _native_ops.are_used():
                known = _Known(tensor, None, *_native_ops.placed_parameter(self._client, tensor, one))
            self._names[id(one)], self._known[name] = (name, one), known

    def _steps_of(self, declared: list[Tensor]) -> int:
        """The steps that are complete of tensors, with which this worker continues. Some may never have had a gradient, and stay at 0."""
        if (self._mode or self._client.mode) == "sync":
            try:
                return self._client.resume(declared)
            except InputError as error:
                if error.code != "uneven":
                    raise
        return self._client.resume([tensor for tensor in declared if self._client.resume([tensor])])

    def _follow(self, rate: Any) -> list[Any]:
        """Changes the learning rate of the servers, if it is another one."""
        with self._lock:
            if float(rate) != self._rate:
                rule = replace(self._rule, learning_rate=float(rate))
                if self._client.rank == 0:
                    for known in self._known.values():
                        self._client.change_rule(known.tensor, rule)
                self._rule, self._rate = rule, float(rate)
        return []

    def _exchange(self, names: list[str], rate: Any, *gradients: Any) -> list[Any]:
        self._follow(rate)
        with self._lock:
            handles = []
            for name, gradient in zip(names, gradients):
                known = self._known[name]
                np.copyto(known.room, gradient)
                handles.append(self._client.push_pull(known.tensor, known.room, out=known.room))
            wait_all(handles)
            results = []
            for name, gradient in zip(names, gradients):
                result = aligned(gradient.shape, gradient.dtype)
                np.copyto(result, self._known[name].room)
                results.append(result)
            return results
