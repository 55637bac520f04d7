"""A communication hook for torch's own DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed

from ..client import Client
from ..codecs import Codec
from ..dtypes import element_of
from ._exchange import MEAN, Exchange, Taken
from ._process import client_or_default


class DdpState:
    """The state of `ddp_hook`: one buffer for each bucket. Create one state for each model."""

    def __init__(self, client: Client | None = None, *, prefix: str = "ddp.", codec: Codec | None = None) -> None:
        self.client, self.codec = client_or_default(client), codec
        self.prefix = Taken(self.client, prefix).prefix
        self._exchanges: dict[tuple[int, int, torch.dtype], Exchange] = {}

    def exchange(self, bucket: Any) -> Exchange:
        """Returns the exchange of a bucket. DDP rebuilds its buckets after the first iteration, identically on every worker."""
        flat = bucket.buffer()
        name = (bucket.index(), flat.numel(), flat.dtype)
        if name not in self._exchanges:
            full = f"{self.prefix}{name[0]}.{name[1]}.{element_of(flat.dtype)}"
            codec = self.codec if flat.dtype == torch.float32 else None
            # Bucket 0 has the last layers, and is ready first; the others are needed before it.
            declared = self.client.declare(full, flat.numel(), flat.dtype, MEAN, codec, "sync", name[0], backup_workers=0)
            self._exchanges[name] = Exchange(self.client, declared, flat)
        return self._exchanges[name]

    def __iter__(self) -> Iterator[Exchange]:
        return iter(self._exchanges.values())


def ddp_hook(state: DdpState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A hook for `DistributedDataParallel.register_comm_hook(DdpState(client), ddp_hook)`: servers average the buckets, instead
    of an all-reduce."""
    flat = bucket.buffer()
    exchange = state.exchange(bucket)
    dense = flat.to_dense() if flat.is_sparse else flat
    ended: torch.futures.Future[None] = torch.futures.Future(devices=[flat.device] if flat.is_cuda else None)

    def mean(_: torch.futures.Future[None]) -> torch.Tensor:
        handle.wait()
        exchange.copy_to(dense)
        return dense.to_sparse(1) if flat.is_sparse else dense

    handle = exchange.begin(dense, into=dense)
    # Without the handle: torch pickles the result of a GPU's future to find tensors in it.
    handle.add_done_callback(lambda _: ended.set_result(None))
    # What this raises, torch raises in the backward pass with its text. From `set_exception` it makes an error of its own.
    return ended.then(mean)


# DistributedDataParallel looks at these, and takes no strings.
ddp_hook.__annotations__["bucket"] = torch.distributed.GradBucket  # type: ignore[attr-defined]
ddp_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
