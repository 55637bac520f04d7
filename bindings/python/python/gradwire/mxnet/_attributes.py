"""What an optimizer of MXNet is, as plain values: its attributes, and its scheduler with those that has."""

from __future__ import annotations

import math
from typing import Any

import mxnet as mx
import numpy as np

from ..errors import InputError

_SCHEDULER = "lr_scheduler"
#: What MXNet's base class counts itself, or what does not travel: not an option of the optimizer.
_OF_BASE = {*(name for name in vars(mx.optimizer.Optimizer()) if name.startswith("_")), "num_update", "param_dict", "sym_info"}


def is_own(name: str) -> bool:
    """Whether an attribute is an option of the optimizer, or something that the optimizer keeps."""
    return name not in _OF_BASE


def attributes_of(optimizer: Any) -> dict[str, Any]:
    """The options of an optimizer, or of a scheduler. Raises InputError if one does not travel."""
    found: dict[str, Any] = {}
    for name, value in vars(optimizer).items():
        if not is_own(name):
            continue
        if name == _SCHEDULER and value is not None:
            kind = type(value).__name__
            if getattr(mx.lr_scheduler, kind, None) is not type(value):
                raise InputError(f"its learning rate scheduler {kind} is not one of mxnet.lr_scheduler: use one of these", "optimizer")
            found[name] = [kind, attributes_of(value)]
        else:
            found[name] = _plain(name, value)
    parameters = getattr(optimizer, "param_dict", None) or {}
    for name in ("lr_mult", "wd_mult"):
        if parameters:
            found[name] = {**found.get(name, {}), **{index: getattr(one, name) for index, one in parameters.items()}}
    return found


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, mx.nd.NDArray) and math.prod(value.shape) == 1:
        return value.asscalar().item()
    if type(value) in (list, tuple):
        return type(value)(_plain(name, one) for one in value)
    if isinstance(value, dict):
        return {_plain(name, key): _plain(name, one) for key, one in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    kind = type(value)
    raise InputError(f"its attribute {name} is a {kind.__module__}.{kind.__qualname__}, which does not travel", "optimizer")


def set_attributes(optimizer: Any, attributes: dict[str, Any]) -> None:
    """Sets what `attributes_of` returned for an object of the same class."""
    known = vars(optimizer)
    for name, value in attributes.items():
        if name not in known or not is_own(name):
            raise InputError(f"{type(optimizer).__name__} has no attribute {name} here: servers and workers must have the same class", "optimizer")
        setattr(optimizer, name, scheduler_of(*value) if name == _SCHEDULER and value is not None else value)


def scheduler_of(name: str, attributes: dict[str, Any]) -> Any:
    """A scheduler of MXNet with these attributes."""
    kind = getattr(mx.lr_scheduler, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, mx.lr_scheduler.LRScheduler)):
        raise InputError(f"there is no scheduler {name} in mxnet.lr_scheduler: use one of these", "optimizer")
    step = attributes.get("step", 1)
    # Its constructor refuses such steps: with a step of 0 a rate would be sought for ever.
    if any(not isinstance(one, int) or one < 1 for one in (step if isinstance(step, list) else [step])):
        raise InputError(f"invalid step {step!r} of {name}: use numbers from 1 on", "optimizer")
    scheduler = kind.__new__(kind)
    scheduler.__dict__.update(attributes)
    return scheduler
