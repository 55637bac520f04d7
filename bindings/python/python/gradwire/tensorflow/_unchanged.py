"""Functions of Horovod and BytePS whose arguments differ from ours. Unchanged scripts get them under `python -m gradwire.run`."""

from __future__ import annotations

from typing import Any

from .._reduction import Average, Sum
from .._reduction import is_average as _is_average
from ..errors import InputError
from . import _gather, _ops
from ._compression import Compression
from ._errors import as_tensorflow_errors
from ._optimizer import DistributedOptimizer as _distributed
from ._process import client_or_default, initialized, local_size
from ._tape import DistributedGradientTape as _Tape


def is_initialized() -> bool:
    """Whether `init` was called."""
    return initialized()


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> Any:
    """The average (or sum) over all workers, as `push_pull`."""
    scaled = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    result = _ops.push_pull(scaled, name, is_average(average, op), compression=compression)
    return result if postscale_factor == 1.0 else result * postscale_factor


def allgather(tensor: Any, name: str | None = None, **named: Any) -> Any:
    """The tensors of all workers after one another. Gradients are not propagated."""
    _known(named)
    return _gather.allgather(tensor, name)


def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    enable_async: bool = False,
    name: str | None = None,
) -> Any:
    """The average (or sum) over all workers. `scope` is a part of the name; `enable_async` is refused."""
    with as_tensorflow_errors():
        if enable_async:
            raise InputError("push_pull does not support enable_async=True: leave it out", "mode")
    if name is not None and scope:
        name = f"{scope}/{name}"
    return _ops.push_pull(tensor, name, is_average(average, op), compression=compression)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    *,
    op: Any = None,
    average: bool | None = None,
    **named: Any,
) -> Any:
    """As ours, with `op`."""
    given = (optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, is_average(average, op))
    return _distributed(*given, **_known(named))


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    *,
    op: Any = None,
    average: bool | None = None,
    **named: Any,
) -> Any:
    """As ours, with `op`."""
    given = (gradtape, device_dense, device_sparse, compression, sparse_as_dense, is_average(average, op))
    return _Tape(*given, **_known(named))


def cross_rank() -> int:
    """The number of this worker's machine, if all machines have as many workers, and ranks follow each other on each."""
    return client_or_default().rank // local_size()


def is_average(average: bool | None, op: Any) -> bool:
    """What `average` and `op` of a script ask for; the default is the average."""
    with as_tensorflow_errors():
        return _is_average(average, op)


def _known(named: dict[str, Any]) -> dict[str, Any]:
    """Refuses an argument that would change values and is not supported."""
    with as_tensorflow_errors():
        if named.pop("gradient_predivide_factor", 1.0) != 1.0:
            raise InputError("gradient_predivide_factor is not supported: leave it out, means are computed by servers", "argument")
        if named.pop("average_aggregated_gradients", False) and named.get("backward_passes_per_step", 1) != 1:
            raise InputError("average_aggregated_gradients is not supported: pass gradient_accumulation_steps to the optimizer", "argument")
        if named.pop("process_set", None) is not None or named.pop("groups", None) is not None:
            raise InputError("process_set and groups are not supported: leave them out", "argument")
    named.pop("num_groups", None)
    return named
