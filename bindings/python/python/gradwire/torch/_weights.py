"""Weights that workers change without waiting for each other. Owns what asynchronous training exchanges; when is the
optimizer's to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..client import Client, Declaration
from ..codecs import Codec
from ..optimizers import Sum
from ._exchange import Exchange, Named, refuse_strangers, unique


class Weights:
    """The weights of named parameters, which servers have: each worker adds its steps to them, whenever it has one."""

    def __init__(self, named: Named, client: Client, prefix: str, codec: Codec | None) -> None:
        self.names, self._client = unique(named), client
        chosen = {name: p for name, p in self.names.items() if p.requires_grad and p.numel()}
        declared = client.declare_all(
            Declaration(
                prefix + name, p.numel(), p.dtype, Sum(), codec if p.dtype == torch.float32 else None, "async", -at
            )
            for at, (name, p) in enumerate(chosen.items())
        )
        self._exchanges = {p: Exchange(client, one, p) for p, one in zip(chosen.values(), declared)}
        self._is_set = False

    def _set(self) -> None:
        """Servers begin with rank 0's, as they are before its first step."""
        if self._is_set:
            return
        for parameter, exchange in self._exchanges.items():
            self._client.init(exchange.declared, parameter.detach().to("cpu").contiguous().reshape(-1).clone())
        self._is_set = True

    def step(self, step: Callable[[], Any]) -> Any:
        """Steps here, adds what that changed to the servers' weights, and takes what those are then."""
        refuse_strangers(self.names, self._exchanges)
        self._set()
        before = {p: p.detach().clone() for p in self._exchanges}
        result = step()
        for parameter, exchange in self._exchanges.items():
            exchange.begin(parameter.detach() - before[parameter])
        for parameter, exchange in self._exchanges.items():
            exchange.end(parameter)
        return result
