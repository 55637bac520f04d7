"""Weights that workers update without waiting for each other. Owns the exchanges of asynchronous training; the optimizer
decides when they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..client import Client, Declaration
from ..codecs import Codec
from ..optimizers import Sum
from ._exchange import Exchange, Named, Taken, plain, unique


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
