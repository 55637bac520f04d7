"""An optimizer that averages gradients over workers before it steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..client import Client, Declaration
from ..codecs import Codec
from ..errors import InputError
from ..optimizers import Sum
from ._average import Averager
from ._broadcast import broadcast, broadcast_value, tensors_in
from ._compression import codec_of
from ._exchange import Exchange, Named, Taken, plain, unique
from ._join import Join, Uneven
from ._process import client_or_default
from ._wrapper import Wrapper


class DistributedOptimizer(Wrapper, Uneven):
    """Wraps an optimizer. Each gradient is averaged over all workers as soon as backward has computed it, while the gradients
    of earlier layers are still being computed; `step` first waits for all of them. Everything else, including hooks, belongs
    to the wrapped optimizer; its hooks are called with the wrapped optimizer.

    In mode "async" (the default is `cluster.mode`, which BYTEPS_ENABLE_ASYNC=1 sets) workers do not wait for each other.
    Servers hold the weights, which start with the values of rank 0 before its first step. `step` takes a step with this
    worker's own gradients, adds the change to the weights of the servers, and then uses the new weights of the servers.
    `synchronize` does nothing in this mode.

    `backward_passes_per_step` gradients of a parameter are summed locally before they are averaged. A parameter without a
    gradient contributes zeros, so that workers may use different parts of a model. If no worker has a gradient of a parameter, it stays
    without one. Parameters that are no longer frozen are averaged from the next step on. Without `named_parameters`, parameters
    are named by their position in the optimizer. The default `client` is the client of the process (`init`).

    Code that modifies gradients before the step must come after `synchronize`. torch's GradScaler needs it only where you unscale:

        scaler.scale(loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)   # and clip
        scaler.step(optimizer)
        scaler.update()

    All workers skip a step together if the gradient of any of them is infinite or NaN.
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
            raise InputError(
                f"{missing} parameters of the optimizer are missing in named_parameters: pass all of model.named_parameters()",
                "unnamed",
            )
        self.mode = self.client.mode if mode is None else mode
        if self.mode not in ("sync", "async"):
            raise InputError(f"DistributedOptimizer does not support mode {self.mode}; pass mode='sync' or mode='async'", "mode")
        self._averager: Averager | None = None
        if self.mode == "async":
            self._weights = Weights(named_parameters, self.client, prefix + "weight.", codec)
        else:
            self._averager = Averager(named_parameters, self.client, prefix, codec, backward_passes_per_step)
            if isinstance(optimizer, torch.optim.SparseAdam):
                self._averager.sparse.update(p for p in of_optimizer if p.requires_grad)
        self._skips = False
        self.enroll(self.client, None if self._averager is None else self._averager.absence)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many gradients are summed locally before they are averaged, from the next gradient on."""
        if self._averager is None:
            return
        self._averager.set_passes(passes)

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers. Call it before you read or modify gradients."""
        if self._averager is not None:
            self._averager.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context, `step` does not wait for gradients: call `synchronize` first."""
        self._skips = True
        try:
            yield
        finally:
            self._skips = False

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Waits for all gradients, unless `synchronize` has done so, and then takes a step. With a closure (LBFGS), each of its
        gradients and losses is averaged; all workers must pass one."""
        Join.notify_join_context(self)
        if self._averager is None:
            return self._weights.step(self.optimizer.step if closure is None else lambda: self.optimizer.step(closure))
        if closure is not None:
            return self.optimizer.step(self._averaged(closure))
        if not (self._averager.is_synchronized or self._skips):
            self.synchronize()
        self._averager.is_synchronized = False
        return self.optimizer.step()

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, with the means of gradients and loss. Optimizers decide by the loss whether to go on, and must decide alike."""
        averager = self._averager
        assert averager is not None

        def average() -> Any:
            with torch.enable_grad():
                loss = closure()
            averager.is_within_step = True
            try:
                if not (averager.is_synchronized or self._skips):
                    averager.synchronize()
            finally:
                # If it stayed set after an error, no worker could later be given the state between two steps.
                averager.is_within_step = False
            averager.is_synchronized = False
            return averager.mean_of(loss)

        return average

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Waits for gradients in flight, discards them, and calls `zero_grad` of the wrapped optimizer."""
        if self._averager is not None:
            self._averager.forget()
        self.optimizer.zero_grad(set_to_none)

    def remove_hooks(self) -> None:
        """Stops averaging gradients. Another wrapper may use the names of the tensors from now on."""
        self.withdraw()
        if self._averager is None:
            self._weights.free()
        else:
            self._averager.remove_hooks()

    # GradScaler's protocol.

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler asks this at the beginning of its `step`, before it looks for infinite gradients. If they were not means by then,
        one worker would take a step that another one skips."""
        if self._averager is not None and not (self._averager.is_synchronized or self._skips):
            self.synchronize()
        return bool(getattr(self.optimizer, "_step_supports_amp_scaling", False))

    # An optimizer that unscales within its step (fused=True) finds the scale, and whether to skip, in these two.

    @property
    def grad_scale(self) -> Any:
        """That of the wrapped optimizer."""
        return self.optimizer.grad_scale  # type: ignore[attr-defined]

    @grad_scale.setter
    def grad_scale(self, scale: Any) -> None:
        self.optimizer.grad_scale = scale  # type: ignore[attr-defined]

    @grad_scale.deleter
    def grad_scale(self) -> None:
        del self.optimizer.grad_scale  # type: ignore[attr-defined]

    @property
    def found_inf(self) -> Any:
        """That of the wrapped optimizer."""
        return self.optimizer.found_inf  # type: ignore[attr-defined]

    @found_inf.setter
    def found_inf(self, found: Any) -> None:
        self.optimizer.found_inf = found  # type: ignore[attr-defined]

    @found_inf.deleter
    def found_inf(self) -> None:
        del self.optimizer.found_inf  # type: ignore[attr-defined]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the wrapped optimizer, and averages its parameters from now on. All workers must do the same."""
        self.optimizer.add_param_group(param_group)
        names = (self._weights if self._averager is None else self._averager).names
        known = {id(p) for p in names.values()}
        new = [p for group in self.optimizer.param_groups for p in group["params"] if id(p) not in known]
        self._adopt((f"added.{at}", p) for at, p in enumerate(new, len(names)))

    def _adopt(self, named: Named) -> None:
        if self._averager is None:
            self._weights.adopt(named)
        else:
            self._averager.adopt(named)

    # Uneven inputs.

    def shadows(self) -> list[Callable[[], bool]]:
        """Asynchronous workers wait for nobody."""
        return [] if self._averager is None else [self._averager.shadow]

    @property
    def contributors(self) -> Sequence[int]:
        """The ranks whose gradients are in the last means: all workers, but those that have joined (`join`)."""
        return range(self.client.workers) if self._averager is None else self._averager.contributors

    def align(self, root: int) -> None:
        """Copies parameters and the state of the optimizer from a worker that took the last step to all workers."""
        assert self._averager is not None
        prefix = f"{self._averager.prefix}joined."
        broadcast(tensors_in(self._averager.names, prefix), self.client, root, initial=False)
        mine = self.optimizer.state_dict() if self.client.rank == root else None
        state = broadcast_value(mine, root, f"{prefix}state.", self.client, "the optimizer's state", initial=False)
        self.optimizer.load_state_dict(state)
        self._averager.contributors = list(range(self.client.workers))

    @property
    def join_device(self) -> torch.device:
        """For torch's `Join`: where it counts workers."""
        device: torch.device = self.optimizer.param_groups[0]["params"][0].device
        return device

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"


class Weights:
    """The weights of named parameters, held by servers. Each worker adds its steps to them whenever it has one."""

    def __init__(self, named: Named, client: Client, prefix: str, codec: Codec | None) -> None:
        self.names, self._client, self._codec = unique(named), client, codec
        self._taken = Taken(client, prefix)
        self._exchanges: dict[torch.Tensor, Exchange] = {}
        # Of them, those that the servers have no weights of yet.
        self._unset: list[torch.Tensor] = []
        self.adopt()

    def adopt(self, named: Named = ()) -> None:
        """Takes in these parameters, too, and those that are no longer frozen. All workers must do the same."""
        self.names.update(unique(named))
        new: dict[torch.Tensor, tuple[int, str]] = {}
        for at, (name, p) in enumerate(self.names.items()):
            if p not in self._exchanges and p.numel() and (p.requires_grad or p.grad is not None):
                new.setdefault(p, (at, name))
        declared = self._client.declare_all(self._declaration(p, *words) for p, words in new.items())
        self._exchanges.update((p, Exchange(self._client, one, p)) for p, one in zip(new, declared))
        self._unset += new

    def _declaration(self, parameter: torch.Tensor, at: int, name: str) -> Declaration:
        like = plain(parameter)
        codec = self._codec if like.dtype == torch.float32 else None
        return Declaration(self._taken.prefix + name, like.numel(), like.dtype, Sum(), codec, "async", -at)

    def _set(self) -> None:
        """Sets the initial weights of the servers to those of rank 0 before its first step with them."""
        for parameter in self._unset:
            initial = plain(parameter.detach()).to("cpu").contiguous().reshape(-1).clone()
            self._client.init(self._exchanges[parameter].declared, initial)
        self._unset.clear()

    def step(self, step: Callable[[], Any]) -> Any:
        """Takes a local step, adds the change to the weights of the servers, and replaces the local weights by the result."""
        self.adopt()
        self._set()
        before = {p: p.detach().clone() for p in self._exchanges}
        result = step()
        for parameter, exchange in self._exchanges.items():
            exchange.begin(parameter.detach() - before[parameter], into=parameter)
        for parameter, exchange in self._exchanges.items():
            exchange.end(parameter)
        return result

    def free(self) -> None:
        """Another wrapper may use the names from now on."""
        self._taken.free()
