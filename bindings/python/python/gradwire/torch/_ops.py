"""Named tensors, summed or averaged over workers: the functions that BytePS scripts use."""

from __future__ import annotations

from typing import Any

import torch

from .._native import Handle
from ..client import Client
from ..errors import InputError
from ..optimizers import Assign
from ._compression import Compression
from ._exchange import MEAN, Exchange, follow
from ._process import client_or_default
from ._state import Names, state_of

# Operations without a name take turns with names: so many for each length and dtype, or as many as this many bytes hold, but two.
UNNAMED_MAX = 64
UNNAMED_BYTES = 16 << 20


def _next_unnamed(names: Names, tensor: torch.Tensor, average: bool) -> str:
    """The name of an operation without one. It follows from the order of the calls alone, and so is the same on all workers: when an
    earlier operation ends, which differs between workers, does not count. The call that finds its name in use waits for the
    operation that has it."""
    kind = f"{tensor.numel()}.{str(tensor.dtype).removeprefix('torch.')}"
    turn = names.unnamed[f"{kind}.{average}"]
    names.unnamed[f"{kind}.{average}"] += 1
    bytes_each = tensor.numel() * tensor.element_size()
    return f"unnamed.{kind}.{turn % min(max(UNNAMED_BYTES // bytes_each, 2), UNNAMED_MAX)}"


def next_name(tensor: torch.Tensor, average: bool) -> str:
    """The name that an operation of the process's client without a name would have."""
    names = state_of(client_or_default()).names
    with names.lock:
        return _next_unnamed(names, tensor, average)


class Operation:
    """A push_pull in flight, for `poll` and `synchronize`."""

    def __init__(self, exchange: Exchange, handle: Handle, output: torch.Tensor) -> None:
        self._exchange, self._handle, self._output = exchange, handle, output
        self._is_done = False

    def done(self) -> bool:
        """Whether the operation has ended."""
        return self._is_done or self._handle.done()

    def wait(self) -> torch.Tensor:
        """Waits, and returns the resulting tensor. Each further call returns it again."""
        if not self._is_done:
            self._handle.wait()
            self._exchange.copy_to(self._output)
            self._exchange.owner = None
            self._is_done = True
        return self._output


def declare(name: str, *, client: Client | None = None) -> int:
    """Declares a name for later operations. Names that are declared earlier have a higher priority. Every worker must declare
    the same names in the same order."""
    names = state_of(client_or_default(client)).names
    return names.order.setdefault(name, len(names.order))


def push_pull_async(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    client: Client | None = None,
) -> Operation:
    """Starts to average (or sum) a tensor over all workers. Every worker must use the same name. Operations without a name must be
    called in the same order on all workers. Those of tensors of one length and dtype share a few names (2 to 64, by their bytes): if
    more are in flight, the call waits for the oldest one. `synchronize` returns a new tensor. `version` is not used."""
    return _begin(tensor, torch.empty_like(tensor), average, name, priority, client)


def push_pull_async_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    client: Client | None = None,
) -> Operation:
    """Like `push_pull_async`, but writes the result into the tensor itself, which may be sent from where it lies: do not write it
    before `synchronize` has returned."""
    return _begin(tensor, tensor, average, name, priority, client)


def push_pull_inplace(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    client: Client | None = None,
) -> torch.Tensor:
    """Averages (or sums) a tensor over all workers, in place."""
    return synchronize(push_pull_async_inplace(tensor, average, name, version, priority, client=client))


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: Any = Compression.none,
    *,
    client: Client | None = None,
) -> torch.Tensor:
    """Returns the average (or sum) of a tensor over all workers. Gradients are propagated through it, and are averaged (or
    summed) as well."""
    if name is None:
        raise InputError("push_pull needs a name that is the same on all workers: pass name=…", "unnamed")
    sent, context = compression.compress(tensor)
    got: torch.Tensor = _PushPull.apply(sent, average, name, priority, client)  # type: ignore[no-untyped-call]
    return compression.decompress(got, context)


def poll(handle: Operation) -> bool:
    """Whether the operation has ended, so that `synchronize` returns at once."""
    return handle.done()


def synchronize(handle: Operation, busy_wait: bool = False) -> torch.Tensor:
    """Waits for an operation, and returns its tensor. `busy_wait` is ignored: waiting never spins."""
    return handle.wait()


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: bool, name: str, priority: int, client: Any) -> torch.Tensor:
        ctx.words = average, name, priority, client
        return synchronize(push_pull_async(tensor, average, name, 0, priority, client=client))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        average, name, priority, client = ctx.words
        handle = push_pull_async(gradients[0], average, name + ".gradient", 0, priority, client=client)
        return synchronize(handle), None, None, None, None


def _begin(
    tensor: torch.Tensor, output: torch.Tensor, average: bool, name: str | None, priority: int, client: Client | None
) -> Operation:
    client = client_or_default(client)
    names = state_of(client).names
    if tensor.is_sparse:
        raise InputError(
            f"push_pull of {name!r}: sparse tensors cannot be averaged: pass tensor.to_dense(), or use client.table()", "sparse"
        )
    if not tensor.numel():
        raise InputError("a tensor without elements cannot be summed", "wrong_shape")
    with names.lock:
        if name is None:
            name = _next_unnamed(names, tensor, average)
        exchange = names.exchanges.get((name, average))
        if exchange is None:
            order = names.order.setdefault(name, len(names.order))
            rule, full = (MEAN, "mean.") if average else (Assign(), "sum.")
            declared = client.declare(
                "push_pull." + full + name, tensor.numel(), tensor.dtype, rule, None, "sync", -order, backup_workers=0
            )
            follow(client, declared)
            exchange = names.exchanges[name, average] = Exchange(client, declared, tensor)
        if exchange.buffer.numel() != tensor.numel() or exchange.buffer.dtype != tensor.dtype:
            raise InputError(
                f"{name!r} was a tensor of {exchange.buffer.numel()} {exchange.buffer.dtype} before: use another name for a "
                "tensor of another length or dtype",
                "wrong_shape",
            )
        previous = exchange.owner
        if previous is not None:
            # Its numbers lie where this one's are to come.
            previous.wait()
        handle = exchange.begin(tensor, priority or None, output)
        operation = exchange.owner = Operation(exchange, handle, output)
    return operation
