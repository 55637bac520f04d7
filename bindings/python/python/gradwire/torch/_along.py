"""The buffers of a model that travel with the rounds of its gradients. Knows how; which rounds there are is the averager's to decide."""

from __future__ import annotations

import torch
from torch import nn

from .._native import Tensor as Declared
from ..client import Client, Declaration
from ..optimizers import Assign
from ._broadcast import bits_of, from_bits
from ._exchange import Exchange


class Along:
    """Each round of gradients ends with the buffers of one worker on all workers. Without it, buffers have rounds of their own, and a worker
    that was restarted would not know in which kind of round the others wait."""

    def __init__(self, module: nn.Module, client: Client, prefix: str) -> None:
        self._module = module
        bits = {name: bits_of(one) for name, one in self._buffers().items()}
        declared = client.declare_all(
            Declaration(f"{prefix}along.{name}", one.numel(), one.dtype, Assign(), mode="sync", backup_workers=0) for name, one in bits.items()
        )
        self._exchanges = {name: Exchange(client, one, bits[name]) for name, one in zip(bits, declared)}
        # The buffers after the last step, from the first forward after it on.
        self._kept: dict[str, torch.Tensor] = {}
        self._has_stepped = True

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: one for name, one in self._module.named_buffers() if one.numel()}

    def tensors(self) -> list[Declared]:
        """The tensors of a round."""
        return [exchange.declared for exchange in self._exchanges.values()]

    def begin(self, is_root: bool) -> None:
        """Contributes the buffers if they are those that all workers get, and otherwise zeros."""
        buffers = self._buffers()
        for name, exchange in self._exchanges.items():
            if exchange.handle is None:
                exchange.begin(bits_of(buffers[name]) if is_root else None)

    def wait(self) -> None:
        """Waits for the round."""
        for exchange in self._exchanges.values():
            exchange.wait()

    def take(self) -> None:
        """Copies what the round has brought to the buffers."""
        buffers = self._buffers()
        with torch.no_grad():
            for name, exchange in self._exchanges.items():
                # `data`: a graph that was made before stays valid.
                buffers[name].data.copy_(from_bits(exchange.buffer, buffers[name]))
        self._has_stepped = True

    def begin_forward(self) -> None:
        """Keeps the buffers before the first forward of a step changes them. A worker that is restarted within the step repeats this
        forward."""
        if self._has_stepped:
            self._kept = {name: one.detach().clone() for name, one in self._buffers().items()}
            self._has_stepped = False

    def before(self, tensor: torch.Tensor) -> torch.Tensor:
        """A buffer as it was before the step, or another tensor as it is."""
        names = [name for name, one in self._buffers().items() if one is tensor]
        return self._kept.get(names[0], tensor) if names else tensor
