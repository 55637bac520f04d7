"""Update rules, which servers apply when a round is complete. They are plain data: servers reject values out of range, with
the reason. A round sums the contributions of all workers; rules other than `Sum` and `Assign` divide the sum by the number
of contributors unless `average=False`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Union

__all__ = ["CosineDecay", "ExponentialDecay", "LinearDecay", "Optimizer", "Own", "Schedule", "StepDecay"]

Json = dict[str, Any]


@dataclass(frozen=True)
class StepDecay:
    """The learning rate is multiplied by `factor` every `every_rounds` rounds."""

    every_rounds: int
    factor: float


@dataclass(frozen=True)
class ExponentialDecay:
    """The learning rate is multiplied by `factor` every round."""

    factor: float


@dataclass(frozen=True)
class LinearDecay:
    """The learning rate falls linearly to `last` times its initial value within `rounds` rounds, and then stays constant."""

    rounds: int
    last: float = 0.0


@dataclass(frozen=True)
class CosineDecay:
    """The learning rate falls along half a cosine wave to `last` times its initial value within `rounds` rounds, and then
    stays constant."""

    rounds: int
    last: float = 0.0


Decay = Union[StepDecay, ExponentialDecay, LinearDecay, CosineDecay]
_DECAYS = {StepDecay: "step", ExponentialDecay: "exponential", LinearDecay: "linear", CosineDecay: "cosine"}


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over the rounds: it grows linearly for `warmup_rounds` rounds, then decays."""

    warmup_rounds: int = 0
    decay: Decay | None = None

    def _json(self) -> Json:
        decay: Any = "constant"
        if self.decay is not None:
            decay = {_DECAYS[type(self.decay)]: dataclasses.asdict(self.decay)}
        return {"warmup_rounds": self.warmup_rounds, "decay": decay}


CONSTANT = Schedule()


@dataclass(frozen=True)
class Optimizer:
    """An update rule. Use a subclass."""

    _name: ClassVar[str] = ""
    _constants: ClassVar[tuple[str, ...]] = ()

    def _rule(self) -> Any:
        if not self._name:
            raise NotImplementedError("use a subclass of Optimizer, such as SGD")
        constants = {name: getattr(self, name) for name in self._constants}
        return {self._name: constants} if constants else self._name

    def _json(self) -> Json:
        """The representation that is sent to the cluster."""
        return {
            "rule": self._rule(),
            "learning_rate": getattr(self, "learning_rate", 0.0),
            "schedule": getattr(self, "schedule", CONSTANT)._json(),
            "weight_decay": getattr(self, "weight_decay", 0.0),
            "average": getattr(self, "average", False),
        }


@dataclass(frozen=True)
class Own(Optimizer):
    """An update rule that the program of the servers has registered under this name. Parameters that are not given have the
    rule's usual values. The declaration is refused if the servers do not have the rule, with the list of those that they
    have."""

    name: str
    parameters: Mapping[str, float] | None = None
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT
    average: bool = True

    _name = "own"

    def _rule(self) -> Any:
        return {self._name: {"name": self.name, "parameters": dict(self.parameters or {})}}


# From here on, this file is written by: cargo run -p gradwire-proto-common --example rules


@dataclass(frozen=True)
class _Stepping(Optimizer):
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT
    average: bool = True


@dataclass(frozen=True)
class Sum(Optimizer):
    """value += sum of the contributions of the round (ps-lite's default handle)."""

    average: bool = False

    _name = "sum"


@dataclass(frozen=True)
class Assign(Optimizer):
    """value = sum of the contributions of the round (an all-reduce)."""

    average: bool = False

    _name = "assign"


@dataclass(frozen=True)
class SGD(_Stepping):
    """Stochastic gradient descent, optionally with momentum and Nesterov momentum.

    - `momentum`: Share of the last step that is kept. It is from 0 to below 1.
    - `nesterov`: Nesterov momentum, in the form of Sutskever et al. 2013. Without momentum it has no effect. It is 0
      or 1."""

    momentum: float = 0.0
    nesterov: bool = False

    _name = "sgd"
    _constants = ("momentum", "nesterov",)


@dataclass(frozen=True)
class AdaGrad(_Stepping):
    """AdaGrad (Duchi et al. 2011).

    - `epsilon`: Added to the denominator. It is above 0.

    State of each element: sum of squares."""

    epsilon: float = 1e-10

    _name = "ada_grad"
    _constants = ("epsilon",)


@dataclass(frozen=True)
class RMSProp(_Stepping):
    """RMSProp (Hinton's lecture 6e), not centred.

    - `decay`: Share of the mean square that is kept. It is from 0 to below 1.
    - `epsilon`: Added to the denominator. It is above 0.

    State of each element: mean square without correction."""

    decay: float = 0.99
    epsilon: float = 1e-8

    _name = "rms_prop"
    _constants = ("decay", "epsilon",)


@dataclass(frozen=True)
class Adam(_Stepping):
    """Adam (Kingma and Ba 2015), with bias correction.

    - `beta1`: Share of the mean that is kept. It is from 0 to below 1.
    - `beta2`: Share of the mean square that is kept. It is from 0 to below 1.
    - `epsilon`: Added to the denominator. It is above 0.

    State of each element: mean, mean square."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    _name = "adam"
    _constants = ("beta1", "beta2", "epsilon",)


@dataclass(frozen=True)
class AdamW(_Stepping):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    - `beta1`: Share of the mean that is kept. It is from 0 to below 1.
    - `beta2`: Share of the mean square that is kept. It is from 0 to below 1.
    - `epsilon`: Added to the denominator. It is above 0.

    State of each element: mean, mean square."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    _name = "adam_w"
    _constants = ("beta1", "beta2", "epsilon",)


@dataclass(frozen=True)
class LAMB(_Stepping):
    """LAMB (You et al. 2020, algorithm 2, without bounds on the norms). It needs the norm of the whole tensor, so all
    of the tensor is on one lane of one server.

    - `beta1`: Share of the mean that is kept. It is from 0 to below 1.
    - `beta2`: Share of the mean square that is kept. It is from 0 to below 1.
    - `epsilon`: Added to the denominator. It is above 0.

    State of each element: mean, mean square."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    _name = "lamb"
    _constants = ("beta1", "beta2", "epsilon",)


@dataclass(frozen=True)
class FTRL(_Stepping):
    """FTRL-proximal (McMahan et al. 2013). It does not support a schedule.

    - `beta`: Added to the root of the sum of squares. It is at least 0.
    - `l1`: L1 weight. It is at least 0.
    - `l2`: L2 weight. It is at least 0.

    State of each element: z, n."""

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    _name = "ftrl"
    _constants = ("beta", "l1", "l2",)


__all__ += [
    "Sum",
    "Assign",
    "SGD",
    "AdaGrad",
    "RMSProp",
    "Adam",
    "AdamW",
    "LAMB",
    "FTRL",
]
