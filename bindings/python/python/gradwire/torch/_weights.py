"""Weights that workers update without waiting for each other. Owns the exchanges of asynchronous training; the optimizer
decides when they happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..client import Client, Declaration
from ..codecs import Codec
from ..optimizers import Sum
from ._exchange import Exchange, Named, Taken, refuse_strangers, unique


class Weights:
    """The weights of named parameters, held by servers. Each worker adds its steps to them whenever it has one."""

    def __init__(self, named: Named, client: Client, prefix: str, codec: Codec | None) -> None:
        self.names, self._client = unique(named), client
        chosen = {name: p for name, p in self.names.items() if p.requires_grad and p.numel()}
        self._taken = Taken(client, prefix, chosen)
        declared = client.declare_all(
            Declaration(
                self._taken.prefix + name, p.numel(), p.dtype, Sum(), codec if p.dtype == torch.float32 else None, "async", -at
            )
            for at, (name, p) in enumerate(chosen.items())
        )
        self._exchanges = {p: Exchange(client, one, p) for p, one in zip(chosen.values(), declared)}
        self._is_set = False

    def _set(self) -> None:
        """Sets the initial weights of the servers to those of rank 0 before its first step."""
        if self._is_set:
            return
        for parameter, exchange in self._exchanges.items():
            self._client.init(exchange.declared, parameter.detach().to("cpu").contiguous().reshape(-1).clone())
        self._is_set = True

    def step(self, step: Callable[[], Any]) -> Any:
        """Takes a local step, adds the change to the weights of the servers, and replaces the local weights by the result."""
        refuse_strangers(self.names, self._exchanges)
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
