"""A model wrapper: gradients are the mean over workers when backward returns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from ..client import Client
from ..codecs import Codec
from ..errors import InputError
from ._average import Averager
from ._broadcast import broadcast_parameters
from ._compression import codec_of
from ._exchange import MEAN, Exchange
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
        self._order = _Order(self._client)
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
        self._order.check()
        self._averager.synchronize()

    def _at_end_of_backward(self) -> None:
        if not self._is_told:
            if _in_reentrant_checkpoint():
                raise InputError(
                    "a model whose last layers are in torch.utils.checkpoint with use_reentrant=True has no end of its backward that can be "
                    "waited for: pass use_reentrant=False, or use DistributedOptimizer",
                    "reentrant",
                )
            self._is_told = True
            # The one way that torch has to be called when all of a backward's hooks have run.
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)  # type: ignore[attr-defined]


class _Order:
    """The number of a model among the wrapped models of its client. Workers that call backward of different models would wait for each
    other until the deadline. Where there are several models, workers therefore compare the numbers before they wait."""

    def __init__(self, client: Client) -> None:
        self._all: list[_Order] = vars(client).setdefault("_models", [])
        self._client, self._number = client, len(self._all)
        self._all.append(self)
        self._exchange: Exchange | None = None

    def check(self) -> None:
        """Raises InputError on all workers if they are at different models."""
        if len(self._all) < 2:
            return
        # If the numbers differed, the mean of their squares would be above the square of their mean.
        mine = torch.tensor([self._number, self._number**2], dtype=torch.float32)
        if self._exchange is None:
            declared = self._client.declare("model.order", 2, "float32", MEAN, mode="sync", backup_workers=0)
            self._exchange = Exchange(self._client, declared, mine)
        self._exchange.begin(mine)
        mean = torch.empty_like(mine)
        self._exchange.end(mean)
        if not torch.equal(mine, mean):
            raise InputError(
                "workers called backward of different models, in each of which the others' gradients are waited for: call them in the "
                "same order on all workers, or use DistributedOptimizer, which waits in step()",
                "order",
            )


def _in_reentrant_checkpoint() -> bool:
    """Whether this backward was started by another one, whose end torch does not tell."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CheckpointFunction.backward.__code__:
            return True
        frame = frame.f_back
    return False


def _in_backward() -> bool:
    # torch 2 tells; before it no model is called there.
    return bool(getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1)
