"""What an optimizer of MXNet is, as plain values: its attributes, and its scheduler with those that has."""

from __future__ import annotations

import math
from typing import Any

import mxnet as mx
import numpy as np

from ..errors import InputError

_SCHEDULER = "lr_scheduler"
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


def attributes_of(optimizer: Any) -> dict[str, Any]:
    """The attributes of an optimizer, or of a scheduler, that make what it does. Raises InputError if one does not travel."""
    found: dict[str, Any] = {}
    for name, value in vars(optimizer).items():
        if name.startswith("_") or name in ("param_dict", "sym_info", "num_update"):
            continue
        if name == _SCHEDULER:
            found[name] = None if value is None else [type(value).__name__, attributes_of(value)]
        elif isinstance(value, (np.generic, mx.nd.NDArray)) and math.prod(value.shape) == 1:
            found[name] = value.item() if isinstance(value, np.generic) else value.asscalar().item()
        elif isinstance(value, _PLAIN):
            found[name] = value
        else:
            kind = type(value)
            raise InputError(f"its attribute {name} is a {kind.__module__}.{kind.__qualname__}, which does not travel", "optimizer")
    parameters = getattr(optimizer, "param_dict", None) or {}
    for name in ("lr_mult", "wd_mult"):
        if parameters:
            found[name] = {**found.get(name, {}), **{index: getattr(one, name) for index, one in parameters.items()}}
    return found


def set_attributes(optimizer: Any, attributes: dict[str, Any]) -> None:
    """Sets what `attributes_of` returned for an object of the same class."""
    known = vars(optimizer)
    for name, value in attributes.items():
        if name not in known or name.startswith("_"):
            raise InputError(f"{type(optimizer).__name__} has no attribute {name} here: servers and workers must have the same class", "optimizer")
        setattr(optimizer, name, _scheduler(value) if name == _SCHEDULER and value is not None else value)


def _scheduler(value: Any) -> Any:
    name, attributes = value
    kind = getattr(mx.lr_scheduler, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, mx.lr_scheduler.LRScheduler)):
        raise InputError(f"there is no scheduler {name} in mxnet.lr_scheduler: use one of these", "optimizer")
    # What its constructor checks and derives is among the attributes.
    scheduler = kind.__new__(kind)
    scheduler.__dict__.update(attributes)
    return scheduler
