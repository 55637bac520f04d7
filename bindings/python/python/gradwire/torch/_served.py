"""Training whose parameters are at servers that apply the optimizer themselves (`gradwire serve`), asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..client import Client
from ..errors import InputError
from ..serve._remote import Remote
from ._exchange import Named, Taken, unique
from ._process import client_or_default
from ._wrapper import Wrapper

#: Types that servers update.
_TYPES = (torch.float16, torch.float32, torch.float64)


class ServedOptimizer(Wrapper):
    """Wraps an optimizer whose class the servers have registered. `step` sends this worker's gradients, which the servers apply by that
    class as they come, and then uses the weights of the servers. Workers do not wait for each other. The weights start with those of rank 0.

    Options of the parameter groups (such as `lr`, also when a scheduler changes it) are those of rank 0. Parameters without a gradient are
    not updated. Gradients of sparse embeddings travel as rows. Servers have one optimizer for each parameter, so an optimizer that computes a
    norm over several parameters gives other values. Every worker must make the wrapper, with the same parameters. The state of
    the wrapped optimizer stays empty: servers have it.
    """

    #: GradScaler unscales the gradients before `step`, and skips steps with infinite ones.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Named | None = None,
        *,
        client: Client | None = None,
        prefix: str = "parameters",
    ) -> None:
        self.optimizer, self.client = optimizer, client_or_default(client)
        of_optimizer = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        named = unique(named_parameters or ((f"parameter.{at}", one) for at, one in enumerate(of_optimizer)))
        names = {id(parameter): name for name, parameter in named.items()}
        missing = sum(id(parameter) not in names for parameter in of_optimizer)
        if missing:
            raise InputError(
                f"{missing} parameters of the optimizer are missing in named_parameters: pass all of model.named_parameters()", "unnamed"
            )
        self._named = [(names[id(parameter)], parameter) for parameter in of_optimizer]
        other = [name for name, parameter in self._named if parameter.dtype not in _TYPES]
        if other:
            raise InputError(f"servers update parameters of float16, float32 and float64, and {other[0]} has another type", "wrong_dtype")
        self._taken = Taken(self.client, f"served.{prefix}.")
        self._remote = Remote(self.client, f"torch/{self._taken.prefix}", "torch")
        self._sent = self._options()
        self._remote.check(type(optimizer).__name__, self._sent)
        if self.client.rank == 0:
            self._remote.set_optimizer(type(optimizer).__name__, self._sent)
            for name, parameter in self._named:
                self._remote.init(name, None, parameter.detach().cpu().numpy())
        self.client.barrier(f"torch.{self._taken.prefix}")
        self._pull()

    def _options(self) -> dict[str, Any]:
        options, at = {}, iter(self._named)
        for group in self.optimizer.param_groups:
            # Schedulers and scripts keep names of their own there.
            own = {name: _plain(value) for name, value in group.items() if name in self.optimizer.defaults}
            options.update({next(at)[0]: own for _ in group["params"]})
        return options

    @torch.no_grad()
    def _pull(self) -> None:
        sizes = [(name, parameter.numel() * parameter.element_size()) for name, parameter in self._named]
        for (_, parameter), weights in zip(self._named, self._remote.pull_all(sizes)):
            parameter.copy_(torch.from_numpy(weights.copy()))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Sends the gradients, and fetches the weights. The closure, if any, is called first, once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        options = self._options()
        if options != self._sent and self.client.rank == 0:
            self._remote.change({name: _changed(self._sent[name], own) for name, own in options.items() if own != self._sent[name]})
        self._sent = options
        for name, parameter in self._named:
            if parameter.grad is not None:
                self._remote.push(name, _arrays_of(parameter.grad))
        self._pull()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As that of the wrapped optimizer."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: make another ServedOptimizer for more parameters."""
        raise InputError("ServedOptimizer takes no more parameters: make another one for them, with a prefix of its own", "add_param_group")

    def __repr__(self) -> str:
        return f"ServedOptimizer({self.optimizer!r})"


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if before.get(name, ...) != value}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _arrays_of(gradient: torch.Tensor) -> list[Any]:
    if gradient.is_sparse:
        whole = gradient.coalesce()
        if whole.sparse_dim() != 1:
            raise InputError("a sparse gradient has more than one sparse dimension: servers take rows", "wrong_shape")
        return [whole.indices()[0].cpu().numpy(), whole.values().cpu().numpy()]
    return [gradient.detach().cpu().numpy()]
