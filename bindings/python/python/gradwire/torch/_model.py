"""A model whose gradients are the mean over workers when backward returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..client import Client
from ..codecs import Codec
from ._average import Averager
from ._broadcast import broadcast_parameters
from ._compression import codec_of
from ._process import client_or_default


class DistributedDataParallel(nn.Module):
    """Wraps a model: parameters and buffers are rank 0's to begin with, gradients are averaged over all workers while
    backward goes on, and have been when it returns; so any optimizer steps alike everywhere. With `broadcast_buffers`
    buffers are rank 0's again at each forward in training. Without `client` it is the process's (`init`).

    Each worker has to come through backward as often as the others. Parameters that one does not use count as zeros there.
    A backward that fails midway is over at the next forward: what it did not bring counts as zeros, and what it did is dropped.
    Gradients are the caller's to zero.

    For torch's own DistributedDataParallel there is `ddp_hook`."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int] | None = None,
        broadcast_buffers: bool = True,
        compression: Any = None,
        *,
        client: Client | None = None,
        prefix: str = "model.",
        codec: Codec | None = None,
    ) -> None:
        super().__init__()
        self.module, self.device_ids = module, device_ids
        self.broadcast_buffers, self._prefix = broadcast_buffers, prefix
        self._client = client_or_default(client)
        averager = Averager(module.named_parameters(), self._client, prefix + "gradient.", codec_of(compression, codec), 1)
        averager.on_begin = self._at_end_of_backward
        self._averager, self._is_told = averager, False
        broadcast_parameters(module.state_dict(), prefix=prefix + "state.", client=self._client)

    def forward(self, *inputs: Any, **words: Any) -> Any:
        """The model's."""
        if self._is_told and not _in_backward():
            # A backward failed midway. The others wait for what it did not bring.
            self._is_told = False
            self._averager.abandon()
        if self.broadcast_buffers and self.training and self._averager.is_on and torch.is_grad_enabled():
            broadcast_parameters(self.module.named_buffers(), prefix=self._prefix + "buffer.", client=self._client)
        return self.module(*inputs, **words)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients within are summed here only; the next backward after it averages them with its own."""
        before, self._averager.is_on = self._averager.is_on, False
        try:
            yield
        finally:
            self._averager.is_on = before

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers; backward does that by itself."""
        self._is_told = False
        self._averager.synchronize()

    def _at_end_of_backward(self) -> None:
        if not self._is_told:
            self._is_told = True
            # The one way that torch has to be called when all of a backward's hooks have run.
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)  # type: ignore[attr-defined]


def _in_backward() -> bool:
    # torch 2 tells; before it no model is called there.
    return bool(getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1)
