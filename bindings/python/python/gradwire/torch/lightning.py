"""A strategy for Lightning: servers average the gradients.

    trainer = lightning.Trainer(strategy=GradwireStrategy(), devices=1)

Each worker is a process of its own that `gradwire launch` has started; Lightning starts none. The strategy wraps the module in
DistributedDataParallel, so clipping, accumulation and any optimizer work as Lightning does them. It needs `lightning`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn

from ..client import Client
from ..codecs import Codec
from ..errors import InputError
from ._broadcast import broadcast_object
from ._collectives import allgather, barrier
from ._model import DistributedDataParallel
from ._ops import push_pull_async, synchronize
from ._process import client_or_default, init, initialized, local_rank


class GradwireStrategy(ParallelStrategy):  # type: ignore[misc]
    """Lightning's strategy with the workers of Gradwire. The default `client` is the client of the process, which joins the cluster now."""

    strategy_name = "gradwire"
    # Lightning then gives each worker its share of the data.
    is_distributed = True

    def __init__(self, *, client: Client | None = None, codec: Codec | None = None, **words: Any) -> None:
        super().__init__(**words)
        if client is None and not initialized():
            init()
        self.client, self._codec, self._is_fitting = client_or_default(client), codec, False
        # Rank 0 alone logs and prints.
        rank_zero_only.rank = self.client.rank

    @property
    def root_device(self) -> torch.device:
        """The device of this worker."""
        device: torch.device = self.parallel_devices[0]
        return device

    @property
    def global_rank(self) -> int:
        """The rank of this worker."""
        return self.client.rank

    @property
    def local_rank(self) -> int:
        """The number of this worker among those of its machine."""
        return local_rank() if initialized() else self.client.rank

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return self.client.workers

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The share of the data of this worker."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def setup(self, trainer: Any) -> None:
        """Wraps the module where it is trained."""
        self._is_fitting = trainer.state.fn == TrainerFn.FITTING
        super().setup(trainer)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return DistributedDataParallel(model, client=self.client, codec=self._codec) if self._is_fitting else model

    def model_to_device(self) -> None:
        """Moves the module to the device of this worker."""
        self.model.to(self.root_device)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Sums gradients locally while Lightning accumulates them."""
        if isinstance(self.model, DistributedDataParallel):
            with self.model.no_sync():
                yield
        else:
            yield

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean or the sum over all workers; values that are no tensors stay as they are."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        kind = str(reduce_op).rpartition(".")[2].lower()
        if kind not in ("mean", "avg", "sum"):
            raise InputError(f"unsupported reduce_op {reduce_op!r}: use 'mean' or 'sum'", "reduce_op")
        if kind != "sum" and not tensor.is_floating_point():
            tensor = tensor.float()
        return synchronize(push_pull_async(tensor.detach(), kind != "sum", client=self.client))

    def barrier(self, name: str | None = None) -> None:
        """Waits until all workers have come."""
        barrier(client=self.client)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The value of one worker."""
        return broadcast_object(os.fspath(obj) if isinstance(obj, os.PathLike) else obj, src, client=self.client)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """The tensors of all workers, in a new first dimension."""
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            return allgather(tensor[None], client=self.client)
