"""Functions of `horovod.torch` whose names or arguments differ from ours. Unchanged scripts get them under `python -m gradwire.run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._absent import *  # noqa: F403
from .._reduction import Average, Reduction, Sum, is_average
from ..errors import InputError
from . import _ops
from ._broadcast import broadcast as _broadcast
from ._broadcast import broadcast_object as _broadcast_object
from ._broadcast import broadcast_optimizer_state as _broadcast_optimizer_state
from ._broadcast import broadcast_parameters as _broadcast_parameters
from ._collectives import allgather as _allgather
from ._collectives import barrier as _barrier
from ._compression import Compression
from ._encoding import decode, encode
from ._join import join as _join
from ._ops import Operation, synchronize
from ._optimizer import DistributedOptimizer as _Distributed
from ._process import client_or_default, process_client


Adasum, Min, Max, Product = (Reduction(name) for name in ("Adasum", "Min", "Max", "Product"))


is_initialized, cross_rank, cross_size = process_client.initialized, process_client.cross_rank, process_client.cross_size


class _Scaled:
    """An operation in flight whose result is multiplied, and converted back where it was compressed."""

    def __init__(self, operation: Operation, into: torch.Tensor | None, scale: float, compression: Any, context: Any, divisor: int | None) -> None:
        self._operation, self._into, self._scale, self._divisor = operation, into, scale, divisor
        self._compression, self._context = compression, context
        self._result: torch.Tensor | None = None

    def done(self) -> bool:
        """Whether it has ended."""
        return self._operation.done()

    @torch.no_grad()
    def wait(self) -> torch.Tensor:
        """Waits, and returns the result, which is the tensor itself for operations in place. Each further call returns it again."""
        if self._result is None:
            got: torch.Tensor = self._compression.decompress(self._operation.wait(), self._context)
            if self._divisor is not None:
                got = torch.div(got, self._divisor, rounding_mode="trunc")
            got = got if self._scale == 1.0 else got * self._scale
            self._result = got if self._into is None or self._into is got else self._into.copy_(got)
        return self._result


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Any:
    """Starts to average (or sum) a tensor over all workers; `synchronize` returns a new tensor."""
    return _begin(tensor, None, (average, op), name, (prescale_factor, postscale_factor), Compression.none, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Any:
    """As `allreduce_async`, in place."""
    return _begin(tensor, tensor, (average, op), name, (prescale_factor, postscale_factor), Compression.none, process_set)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """The average (or sum) of a tensor over all workers. Gradients are propagated through it, and are averaged (or summed) as well."""
    if not tensor.requires_grad:
        return _begin(tensor, None, (average, op), name, (prescale_factor, postscale_factor), compression, process_set).wait()
    _refuse(process_set)
    name = name or _ops.next_name(tensor, is_average(average, op))
    scaled = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    result = _ops.push_pull(scaled, is_average(average, op), name, compression=compression)
    return result if postscale_factor == 1.0 else result * postscale_factor


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """As `allreduce`, in place, without gradients."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> list[torch.Tensor]:
    """`allreduce` of each."""
    names = [None if name is None else f"{name}.{at}" for at in range(len(tensors))]
    scales = prescale_factor, postscale_factor
    if any(one.requires_grad for one in tensors):
        return [allreduce(one, average, of, compression, op, *scales, process_set) for one, of in zip(tensors, names)]
    begun = [_begin(one, None, (average, op), of, scales, compression, process_set) for one, of in zip(tensors, names)]
    return [one.wait() for one in begun]


def _begin(
    tensor: torch.Tensor,
    into: torch.Tensor | None,
    how: tuple[bool | None, Any],
    name: str | None,
    scales: tuple[float, float],
    compression: Any,
    process_set: Any,
) -> _Scaled:
    _refuse(process_set)
    sent, context = compression.compress(tensor.detach())
    if scales[0] != 1.0:
        sent = sent * scales[0]
    average, divisor = is_average(*how), None
    if average and not sent.is_floating_point() and not sent.is_complex():
        # Servers average floats. Horovod cuts off what is left.
        average, divisor = False, client_or_default().workers
    is_copied = into is None or sent.data_ptr() != tensor.data_ptr()
    begin = _ops.push_pull_async if is_copied else _ops.push_pull_async_inplace
    return _Scaled(begin(sent, average, name), into, scales[1], compression, context, divisor)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """The tensors of all workers, concatenated along the first dimension."""
    _refuse(process_set)
    return _allgather(tensor, name)


def allgather_object(obj: Any, name: str | None = None, process_set: Any = None) -> list[Any]:
    """The values of all workers, by rank. As with `broadcast_object`, received data is never executed. If a value of one worker does not
    travel, every worker gets the InputError."""
    _refuse(process_set)
    refused, text = False, ""
    try:
        text, tensors = encode(obj, "the value")
        if tensors:
            raise InputError("allgather_object does not take tensors: pass them to allgather", "object")
    except InputError as error:
        refused, text = True, str(error)
    mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    full = name or "allgather_object"
    heads = _allgather(torch.tensor([[len(mine), int(refused)]]), f"{full}.lengths").tolist()
    texts = [bytes(part.tolist()).decode() for part in _allgather(mine, full).split([length for length, _ in heads])]
    for rank, (one, (_, is_refused)) in enumerate(zip(texts, heads)):
        if is_refused:
            raise InputError(f"allgather_object: rank {rank}: {one}", "object")
    return [decode(one, iter(())) for one in texts]


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """The tensor of `root_rank`, as a new one."""
    return broadcast_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """Copies the tensor of `root_rank` into that of every worker."""
    _refuse(process_set)
    if tensor.numel():
        # It ends before the next one begins, so one name is enough.
        _broadcast([(name or "broadcast.unnamed", tensor)], client_or_default(), root_rank, initial=False)
    return tensor


class _Done:
    """An operation that has ended."""

    def __init__(self, result: torch.Tensor) -> None:
        self._result = result

    def done(self) -> bool:
        """True."""
        return True

    def wait(self) -> torch.Tensor:
        """Returns the result."""
        return self._result


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Any:
    """As `broadcast`, which it does at once; for `synchronize`."""
    return _Done(broadcast(tensor, root_rank, name, process_set))


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> Any:
    """As `broadcast_`, which it does at once; for `synchronize`."""
    return _Done(broadcast_(tensor, root_rank, name, process_set))


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> Any:
    """As `allgather`, which it does at once; for `synchronize`."""
    return _Done(allgather(tensor, name, process_set))


def broadcast_parameters(params: Any, root_rank: int, process_set: Any = None) -> None:
    """Copies the tensors of `root_rank` to every worker."""
    _refuse(process_set)
    _broadcast_parameters(params, root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int, model: Any = None) -> None:
    """Copies the state of an optimizer of `root_rank` to every worker."""
    _broadcast_optimizer_state(optimizer, root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The value of `root_rank`."""
    _refuse(process_set)
    return _broadcast_object(obj, root_rank, name or "object")


def barrier(process_set: Any = None) -> None:
    """Waits until every worker has reached it."""
    _refuse(process_set)
    _barrier()


def join(device: Any = -1) -> int:
    """As ours: the gradients of workers that have joined no longer count. Returns the rank of a worker that took the last step."""
    return _join()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Any = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
) -> Any:
    """As ours. Sparse gradients are averaged sparsely in any case."""
    _refuse(process_set)
    if op is not Average:
        raise InputError(f"DistributedOptimizer does not support op={op!r}: use Average, and multiply the learning rate by size()", "reduction")
    if gradient_predivide_factor != 1.0:
        raise InputError("gradient_predivide_factor is not supported: leave it out, means are computed by servers", "argument")
    return _Distributed(optimizer, named_parameters, compression, backward_passes_per_step)


def _refuse(process_set: Any) -> None:
    if process_set is not None:
        raise InputError("process_set is not supported: leave it out", "argument")


def __getattr__(name: str) -> Any:
    if name in ("alltoall", "alltoall_async", "reducescatter", "reducescatter_async", "SyncBatchNorm", "elastic", "ProcessSet", "global_process_set"):
        raise AttributeError(f"Gradwire does not have horovod.torch.{name}")
    raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}")
