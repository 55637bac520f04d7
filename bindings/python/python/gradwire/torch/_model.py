"""A model wrapper: gradients are the mean over workers when backward returns."""

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
    """Wraps a model. Parameters and buffers start with the values of rank 0. Gradients are averaged over all workers while
    backward runs, and the averages are complete when it returns, so that any optimizer takes the same step on every worker.
    With `broadcast_buffers`, every forward in training mode starts with the buffers of rank 0. The default `client` is the
    client of the process (`init`).

    Every worker must call backward equally often. A worker contributes zeros for parameters that it does not use. If a
    backward fails midway, the next forward ends it: the missing gradients count as zeros, and the results are discarded.
    The caller zeroes gradients.

    For torch's own DistributedDataParallel use `ddp_hook`."""

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
        """Calls the wrapped model."""
        if self._is_told and not _in_backward():
            # A backward failed midway. The other workers wait for the missing gradients.
            self._is_told = False
            self._averager.abandon()
        if self.broadcast_buffers and self.training and self._averager.is_on and torch.is_grad_enabled():
            broadcast_parameters(self.module.named_buffers(), prefix=self._prefix + "buffer.", client=self._client)
        return self.module(*inputs, **words)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context, gradients are only summed locally; the first backward after it averages the sum."""
        before, self._averager.is_on = self._averager.is_on, False
        try:
            yield
        finally:
            self._averager.is_on = before

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers. backward calls this itself."""
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
