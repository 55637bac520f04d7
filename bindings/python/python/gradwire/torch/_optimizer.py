"""An optimizer that averages gradients over workers before it steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..client import Client
from ..codecs import Codec
from ..errors import InputError
from ._average import Averager
from ._compression import codec_of
from ._exchange import Named
from ._process import client_or_default
from ._weights import Weights


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer, and is one: each gradient is averaged over all workers as soon as backward has it, while earlier
    layers' are still computed, and `step` waits for them all first. Everything else, hooks too, is the wrapped optimizer's,
    which is what its hooks are called with.

    In mode "async" (`mode`, or else the cluster's: BYTEPS_ENABLE_ASYNC=1) nobody waits for others: servers have the weights,
    which begin as rank 0's before its first step. `step` steps with this worker's own gradients, adds what that changed to
    the servers' weights, and takes what those are then. `synchronize` does nothing there.

    `backward_passes_per_step` gradients of a parameter are summed here before they are averaged. A parameter without a
    gradient in some step contributes zeros, so that workers may use different parts of a model. Without `named_parameters`
    parameters are named by their place in the optimizer. Without `client` it is the process's (`init`).

    What changes gradients before the step comes after `synchronize`. With torch's GradScaler:

        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)   # and clip, if you like
        scaler.step(optimizer)
        scaler.update()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Named | None = None,
        compression: Any = None,
        backward_passes_per_step: int = 1,
        *,
        client: Client | None = None,
        prefix: str = "gradient.",
        codec: Codec | None = None,
        mode: str | None = None,
    ) -> None:
        self.optimizer, self.client = optimizer, client_or_default(client)
        codec = codec_of(compression, codec)
        of_optimizer = [p for group in optimizer.param_groups for p in group["params"]]
        if named_parameters is None:
            named_parameters = [(f"parameter.{at}", p) for at, p in enumerate(of_optimizer)]
        named_parameters = list(named_parameters)
        known = {id(parameter) for _, parameter in named_parameters}
        missing = sum(id(p) not in known for p in of_optimizer)
        if missing:
            raise InputError(f"{missing} parameters of the optimizer have no name in named_parameters", "unnamed")
        self.mode = self.client.mode if mode is None else mode
        if self.mode not in ("sync", "async"):
            raise InputError(f"no optimizer trains in mode {self.mode}; pass mode='sync' or mode='async'", "mode")
        self._averager: Averager | None = None
        self._weights: Weights | None = None
        if self.mode == "async":
            self._weights = Weights(named_parameters, self.client, prefix + "weight.", codec)
        else:
            self._averager = Averager(named_parameters, self.client, prefix, codec, backward_passes_per_step)
        self._synchronized = self._skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """So many gradients are summed here before they are averaged, from the next ones on."""
        if self._averager is None:
            return
        self._averager.set_passes(passes)

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers: before what looks at them, or changes them."""
        if self._averager is not None:
            self._averager.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A `step` within does not wait for gradients: `synchronize` did."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Waits for all gradients, unless `synchronize` did, and steps."""
        if closure is not None:
            raise InputError("a closure computes gradients within the step, which cannot be averaged", "closure")
        if self._weights is not None:
            return self._weights.step(self.optimizer.step)
        if not (self._synchronized or self._skips):
            self.synchronize()
        self._synchronized = False
        return self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's; gradients under way are waited for, and forgotten."""
        if self._averager is not None:
            self._averager.forget()
        self._synchronized = False
        self.optimizer.zero_grad(set_to_none)

    def remove_hooks(self) -> None:
        """Gradients are not averaged any more."""
        if self._averager is not None:
            self._averager.remove_hooks()

    # What an optimizer has is the wrapped one's: its hooks are registered there, too.

    def __getattr__(self, name: str) -> Any:
        # What is copied or unpickled has nothing yet.
        if "optimizer" not in vars(self):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Of the wrapped optimizer."""
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        """Of the wrapped optimizer."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        """Of the wrapped optimizer."""
        return self.optimizer.defaults

    def state_dict(self) -> dict[str, Any]:
        """Of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: its parameters would have no names, and would not be averaged."""
        raise InputError("add parameters to the optimizer before it is wrapped", "unnamed")

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"
