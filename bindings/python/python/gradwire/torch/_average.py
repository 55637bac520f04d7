"""Averages the gradients of parameters over workers as soon as backward has computed them. Owns the hooks, the record of
contributed gradients, and their order. Optimizers and models decide when to wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._native import Tensor as Declared
from ..client import Client, Declaration
from ..codecs import Codec
from ..errors import InputError
from ._exchange import MEAN, Exchange, Named, Taken, refuse_strangers, unique

_CHANGED = (
    "gradients were modified after backward had contributed them, and the change would be lost: call synchronize() after "
    "backward and before the code that modifies them (GradScaler's unscale_ and step, gradient clipping, zeroing a gradient)"
)


_SAMPLE = 16


class _Sent:
    """A gradient as it was sent. Some writes do not change a tensor's version (GradScaler's unscaling), so a sample of its
    elements is kept as well."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self.gradient, self._version = gradient, gradient._version
        self._some = self._sample().clone()

    def _sample(self) -> torch.Tensor:
        dense = self.gradient._values() if self.gradient.is_sparse else self.gradient
        flat = dense.detach().reshape(-1)
        return flat[:: max(1, flat.numel() // _SAMPLE)]

    def is_still(self, gradient: torch.Tensor | None) -> bool:
        """Whether this is the same gradient with the same elements."""
        if gradient is not self.gradient or gradient._version != self._version:
            return False
        now = self._sample()
        return bool(((now == self._some) | (now.isnan() & self._some.isnan())).all())


class Averager:
    """The gradients of named parameters."""

    def __init__(self, named: Named, client: Client, prefix: str, codec: Codec | None, passes: int) -> None:
        if passes < 1:
            raise InputError("backward_passes_per_step must be at least 1", "backward_passes")
        self.names = unique(named)
        chosen = {name: p for name, p in self.names.items() if p.requires_grad and p.numel()}
        taken = Taken(client, prefix, chosen)
        declared = _declare(client, [taken.prefix + name for name in chosen], list(chosen.values()), codec)
        self._exchanges = {p: Exchange(client, d, p) for p, d in zip(chosen.values(), declared)}
        self._passes = passes
        self._left = dict.fromkeys(self._exchanges, passes)
        # Gradients that are on their way.
        self._sent: dict[torch.Tensor, _Sent] = {}
        # Of them, those to which a later backward has added.
        self._stale: set[torch.Tensor] = set()
        # Parameters whose gradients are sparse.
        self.sparse: set[torch.Tensor] = set()
        self._names_taken = taken
        self._nodes: list[Any] = []
        self._hooks = [self._hook(p) for p in self._exchanges]
        self.is_on = True
        # Whether gradients are means, and no backward has begun since.
        self.is_synchronized = False
        # Called as a gradient is on its way.
        self.on_begin: Callable[[], None] = lambda: None

    def _hook(self, parameter: torch.Tensor) -> Any:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            return parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
        # Before torch 2.1: the node that adds to `.grad` calls back behind itself. It goes with whoever has it last.
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        self._nodes.append(node)
        return node.register_hook(lambda *_: self._ready(parameter))

    def _ready(self, parameter: torch.Tensor) -> None:
        if not self.is_on:
            return
        self.is_synchronized = False
        self._left[parameter] -= 1
        if self._left[parameter] > 0 or parameter.grad is None:
            return
        if parameter in self._sent:
            # Another backward before the step, as in a loop with two losses. The sum is sent by `synchronize`. If it were sent here, this
            # would wait for workers that wait for a gradient of this one.
            self._stale.add(parameter)
            return
        self._begin(parameter, parameter.grad)
        self.on_begin()

    def _begin(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        if gradient.is_sparse:
            self.sparse.add(parameter)
        self._exchanges[parameter].begin(gradient)
        self._sent[parameter] = _Sent(gradient)

    def set_passes(self, passes: int) -> None:
        """Sets how many gradients are summed locally before they are averaged, from the next gradient on."""
        if passes < 1:
            raise InputError("backward_passes_per_step must be at least 1", "backward_passes")
        self._passes = passes
        self._left = dict.fromkeys(self._exchanges, passes)

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers. Parameters without a gradient contribute zeros."""
        refuse_strangers(self.names, self._exchanges)
        for parameter, exchange in self._exchanges.items():
            if exchange.handle is None:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._begin(parameter, parameter.grad)
        for parameter in self._exchanges:
            # In this order on all workers. What was sent first is discarded.
            if parameter in self._stale and parameter.grad is not None:
                self._begin(parameter, parameter.grad)
        if not all(sent.is_still(parameter.grad) for parameter, sent in self._sent.items()):
            raise InputError(_CHANGED, "changed_gradient")
        for parameter, exchange in self._exchanges.items():
            exchange.wait()
            self._take(parameter, exchange)
        self._again()
        self.is_synchronized = True

    def _take(self, parameter: torch.Tensor, exchange: Exchange) -> None:
        if parameter not in self.sparse:
            exchange.copy_to(self._sent[parameter].gradient)
            return
        dense = torch.empty_like(parameter)
        exchange.copy_to(dense)
        # The rows that any worker has used.
        parameter.grad = dense.to_sparse(1)

    def forget(self) -> None:
        """Waits for all operations in flight, and discards their results."""
        for exchange in self._exchanges.values():
            exchange.wait()
        self._again()
        self.is_synchronized = False

    def abandon(self) -> None:
        """Completes a round in which only some gradients were sent: contributes zeros for the others, and discards the results."""
        for parameter, exchange in self._exchanges.items():
            if parameter not in self._sent:
                exchange.begin(torch.zeros_like(parameter))
        self.forget()

    def _again(self) -> None:
        self._sent.clear()
        self._stale.clear()
        self._left = dict.fromkeys(self._exchanges, self._passes)

    def remove_hooks(self) -> None:
        """Stops averaging gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._names_taken.free()


def _declare(client: Client, names: list[str], like: list[torch.Tensor], codec: Codec | None) -> list[Declared]:
    # First layers first: the next forward pass needs them first. Everybody's gradient counts: workers that applied other
    # means would drift apart.
    pairs = enumerate(zip(names, like))
    return client.declare_all(
        Declaration(
            name, one.numel(), one.dtype, MEAN, codec if one.dtype == torch.float32 else None, "sync", -at, backup_workers=0
        )
        for at, (name, one) in pairs
        if one.numel()
    )
