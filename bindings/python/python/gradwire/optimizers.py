"""Update rules, which servers apply when a round is complete. They are plain data: servers reject values out of range, with
the reason. A round sums the contributions of all workers; rules other than `Sum` and `Assign` divide the sum by the number
of contributors unless `average=False`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Union

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

    def _rule(self) -> Any:
        raise NotImplementedError("use a subclass of Optimizer, such as SGD")

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
class Sum(Optimizer):
    """value += sum of the contributions of the round."""

    average: bool = False

    def _rule(self) -> Any:
        return "sum"


@dataclass(frozen=True)
class Assign(Optimizer):
    """value = sum of the contributions of the round (an all-reduce)."""

    average: bool = False

    def _rule(self) -> Any:
        return "assign"


@dataclass(frozen=True)
class _Stepping(Optimizer):
    learning_rate: float = 0.01
    weight_decay: float = 0.0
    schedule: Schedule = CONSTANT
    average: bool = True


@dataclass(frozen=True)
class SGD(_Stepping):
    """Stochastic gradient descent, optionally with momentum and Nesterov momentum."""

    momentum: float = 0.0
    nesterov: bool = False

    def _rule(self) -> Any:
        return {"sgd": {"momentum": self.momentum, "nesterov": self.nesterov}}


@dataclass(frozen=True)
class AdaGrad(_Stepping):
    """AdaGrad (Duchi et al. 2011)."""

    epsilon: float = 1e-10

    def _rule(self) -> Any:
        return {"ada_grad": {"epsilon": self.epsilon}}


@dataclass(frozen=True)
class RMSProp(_Stepping):
    """RMSProp, not centred; `decay` is the smoothing factor of the mean square."""

    decay: float = 0.99
    epsilon: float = 1e-8

    def _rule(self) -> Any:
        return {"rms_prop": {"decay": self.decay, "epsilon": self.epsilon}}


@dataclass(frozen=True)
class _Moments(_Stepping):
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def _moments(self) -> Json:
        return {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}


@dataclass(frozen=True)
class Adam(_Moments):
    """Adam (Kingma and Ba 2015), with bias correction."""

    def _rule(self) -> Any:
        return {"adam": self._moments()}


@dataclass(frozen=True)
class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    def _rule(self) -> Any:
        return {"adam_w": self._moments()}


@dataclass(frozen=True)
class LAMB(_Moments):
    """LAMB (You et al. 2020, algorithm 2). It needs the norm of the whole tensor, so all of the tensor is on one lane of one
    server."""

    def _rule(self) -> Any:
        return {"lamb": self._moments()}


@dataclass(frozen=True)
class FTRL(_Stepping):
    """FTRL-proximal (McMahan et al. 2013). It does not support a schedule."""

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def _rule(self) -> Any:
        return {"ftrl": {"beta": self.beta, "l1": self.l1, "l2": self.l2}}
