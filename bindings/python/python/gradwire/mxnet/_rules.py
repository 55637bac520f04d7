"""Maps MXNet's optimizers to update rules of servers. An optimizer without a counterpart is reported with the reason, and
runs on the workers."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from .._rule import Rule
from ._connection import IS_2


class Unmapped(Exception):
    """The optimizer has no counterpart on servers; the text is the reason."""


def _sgd(o: Any) -> Any:
    return {"sgd": {"momentum": o.momentum, "nesterov": False}}


def _nag(o: Any) -> Any:
    if o.momentum and o.wd:
        # MXNet's own adds the decay of weights that it has updated already.
        raise Unmapped("NAG with weight decay")
    return {"sgd": {"momentum": o.momentum, "nesterov": o.momentum != 0}}


def _adam(o: Any) -> Any:
    return {"adam": {"beta1": o.beta1, "beta2": o.beta2, "epsilon": o.epsilon}}


def _adam_w(o: Any) -> Any:
    if not o.correct_bias:
        raise Unmapped("AdamW without correct_bias")
    return {"adam_w": {"beta1": o.beta1, "beta2": o.beta2, "epsilon": o.epsilon}}


def _lamb(o: Any) -> Any:
    if o.lower_bound or o.upper_bound or not o.bias_correction:
        raise Unmapped("LAMB with bounds, or without bias_correction")
    return {"lamb": {"beta1": o.beta1, "beta2": o.beta2, "epsilon": o.epsilon}}


def _ada_grad(o: Any) -> Any:
    return {"ada_grad": {"epsilon": o.epsilon if IS_2 else o.float_stable_eps}}


def _rms_prop(o: Any) -> Any:
    if o.centered or o.clip_weights:
        raise Unmapped("RMSProp with centered or clip_weights")
    return {"rms_prop": {"decay": o.rho if IS_2 else o.gamma1, "epsilon": o.epsilon}}


def _ftrl(o: Any) -> Any:
    return {"ftrl": {"beta": o.beta, "l1": o.lamda1, "l2": 0.0}}


#: By the name of MXNet's class: the rule, and whether its form is MXNet's own in this version.
_KINDS = {
    "SGD": (_sgd, True),
    "NAG": (_nag, True),
    "Adam": (_adam, True),
    "AdamW": (_adam_w, True),
    "LAMB": (_lamb, False),
    "AdaGrad": (_ada_grad, not IS_2),
    "RMSProp": (_rms_prop, not IS_2),
    "Ftrl": (_ftrl, False),
}
#: Schedulers whose rate changes now and then: servers are told each time.
_SELDOM = ("FactorScheduler", "MultiFactorScheduler")


def rule_of(optimizer: Any, index: Any) -> Rule:
    """Returns the rule of a parameter for the current state of the optimizer."""
    kind = type(optimizer)
    if kind.__name__ not in _KINDS or not kind.__module__.startswith("mxnet."):
        raise Unmapped(f"Gradwire has no rule {kind.__name__}")
    if optimizer.clip_gradient is not None:
        raise Unmapped("clip_gradient")
    if optimizer.begin_num_update != 0:
        raise Unmapped("begin_num_update")
    scheduler = optimizer.lr_scheduler
    if scheduler is not None and (type(scheduler).__name__ not in _SELDOM or scheduler.warmup_steps):
        raise Unmapped(f"the scheduler {type(scheduler).__name__} changes the learning rate at every step")
    make, is_own = _KINDS[kind.__name__]
    rule, decay = make(optimizer), float(optimizer._get_wd(index))
    if "ftrl" in rule:
        # Its weight decay is the rule's weight of squares.
        rule["ftrl"]["l2"], decay = decay, 0.0
    rescale = optimizer.rescale_grad
    rescale = rescale.asscalar() if isinstance(rescale, mx.nd.NDArray) else rescale
    return Rule(
        rule=rule,
        learning_rate=float(optimizer._get_lr(index)),
        weight_decay=decay,
        rescale=float(rescale),
        form="mxnet" if is_own else "published",
    )


def leaves_rows(optimizer: Any, index: Any, is_sparse: bool) -> bool:
    """Does MXNet's own leave a parameter's rows alone that a row-sparse gradient does not name, where a gradient of
    zeros would change them, or what is kept of them? `is_sparse`: the weights are row-sparse, too."""
    kind = type(optimizer)
    if not kind.__module__.startswith("mxnet."):
        # A script's own class, or none at all: it is to see what MXNet would show it.
        return True
    if not getattr(optimizer, "lazy_update", True):
        return False
    if kind.__name__ in _WHOLE or (kind.__name__ == "NAG" and (optimizer.momentum or IS_2)):
        return False
    if kind.__name__ == "Ftrl":
        return is_sparse
    if kind.__name__ == "AdaGrad" or not getattr(optimizer, "momentum", True):
        return bool(optimizer._get_wd(index))
    return True


#: MXNet makes their gradients whole, or the result is the same.
_WHOLE = ("RMSProp", "LAMB", "AdamW", "Signum", "AdaDelta", "Test")
#: How many arrays servers keep for a rule; momentum of 0 needs none.
_KEPT = {"sgd": 1, "ada_grad": 1, "rms_prop": 1, "adam": 2, "adam_w": 2, "ftrl": 2}


def kept_by(rule: Any) -> int | None:
    """How many arrays servers keep for a rule, and can show; None where they cannot."""
    if not isinstance(rule, Rule):
        return 0
    (name, constants), = rule.rule.items()
    return 0 if constants.get("momentum") == 0 else _KEPT.get(name)


def exchange(array: int) -> Rule:
    """Weights change places with what the rule before keeps; see `Rule::Exchange` of the servers."""
    return Rule({"exchange": {"array": array}}, 0.0, 0.0, 1.0, "published")


def state_of(optimizer: Any, kept: list[Any]) -> Any:
    """What servers keep of a parameter, as MXNet's optimizer has it."""
    kind = type(optimizer).__name__
    if not kept:
        return None
    if kind in ("SGD", "NAG"):
        # MXNet's momentum is what is added.
        return -kept[0]
    if kind == "AdaGrad" or (kind == "RMSProp" and IS_2):
        return kept[0]
    return tuple(kept)
