"""A rule of servers as other frameworks' optimizers need it: in their form, and with a factor. `optimizers` has those for users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .optimizers import CONSTANT, Optimizer


@dataclass(frozen=True)
class Rule(Optimizer):
    """A rule with the factor of the gradients' sum, and in MXNet's form where that is another."""

    rule: Any
    learning_rate: float
    weight_decay: float = 0.0
    rescale: float = 1.0
    form: str = "mxnet"
    average: bool = False

    def _json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "learning_rate": self.learning_rate,
            "schedule": CONSTANT._json(),
            "weight_decay": self.weight_decay,
            "average": self.average,
            "rescale": self.rescale,
            "form": self.form,
        }
