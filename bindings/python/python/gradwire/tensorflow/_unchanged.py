"""Functions of Horovod and BytePS whose arguments differ from ours. Unchanged scripts get them under `python -m gradwire.run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from .._reduction import Average, Sum
from .._reduction import is_average as _is_average
from ..errors import InputError
from . import _gather, _ops
from ._compression import Compression
from ._errors import as_tensorflow_errors
from ._optimizer import DistributedOptimizer as _distributed
from ._process import process_client
from ._tape import DistributedGradientTape as _Tape


is_initialized, cross_rank, cross_size = process_client.initialized, process_client.cross_rank, process_client.cross_size


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
    process_set: Any = None,
    ignore_name_scope: bool = False,
) -> Any:
    """The average (or sum) over all workers, as `push_pull`."""
    _known({"process_set": process_set})
    tensor = tf.convert_to_tensor(tensor)
    scaled = tensor if prescale_factor == 1.0 else tensor * tf.cast(prescale_factor, tensor.dtype)
    result = _ops.push_pull(scaled, name, is_average(average, op), compression=compression)
    return result if postscale_factor == 1.0 else result * tf.cast(postscale_factor, result.dtype)


def allgather(tensor: Any, name: str | None = None, **named: Any) -> Any:
    """The tensors of all workers after one another. Gradients are not propagated."""
    named.pop("ignore_name_scope", None)
    _none_left(_known(named))
    return _gather.allgather(tensor, name)


def broadcast(tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False, process_set: Any = None) -> Any:
    """The tensor of `root_rank`. `ignore_name_scope` has no effect."""
    _known({"process_set": process_set})
    return _ops.broadcast(tensor, root_rank, name)


def byteps_broadcast(tensor: Any, root_rank: int, scope: str = "", name: str | None = None, is_variable: bool = True) -> Any:
    """`broadcast` of BytePS. `scope` is a part of the name; `is_variable` has no effect."""
    return _ops.broadcast(tensor, root_rank, f"{scope}/{name}" if name is not None and scope else name)


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, scope: str = "", *, process_set: Any = None, inplace: bool = False
) -> None:
    """As ours. `scope` and `inplace` have no effect."""
    _known({"process_set": process_set})
    _ops.broadcast_variables(variables, root_rank)


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
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = None,
    **named: Any,
) -> Any:
    """As ours, with `op`. `use_locking` has no effect."""
    return keras_optimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        **named,
    )


def keras_optimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = None,
    *,
    backward_passes_per_step: int = 1,
    average: bool | None = None,
    **named: Any,
) -> Any:
    """`DistributedOptimizer` of the modules for Keras, whose arguments have another order."""
    named |= {"gradient_predivide_factor": gradient_predivide_factor, "backward_passes_per_step": backward_passes_per_step}
    refuse_async()
    given = (optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, is_average(average, op))
    return _distributed(*given, **_known(named))


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = None,
    *,
    average: bool | None = None,
    **named: Any,
) -> Any:
    """As ours, with `op`."""
    refuse_async()
    given = (gradtape, device_dense, device_sparse, compression, sparse_as_dense, is_average(average, op))
    return _Tape(*given, **_known(named))


def is_average(average: bool | None, op: Any) -> bool:
    """What `average` and `op` of a script ask for; the default is the average."""
    with as_tensorflow_errors():
        return _is_average(average, op)


def refuse_async() -> None:
    """BytePS has an asynchronous mode for its optimizer, by a variable."""
    with as_tensorflow_errors():
        if os.environ.get("BYTEPS_ENABLE_ASYNC", "0") not in ("", "0"):
            raise InputError(
                "averages of gradients in TensorFlow do not support BYTEPS_ENABLE_ASYNC: unset it, or use ParameterServerOptimizer, which "
                'has the mode "async"',
                "mode",
            )


def _known(named: dict[str, Any]) -> dict[str, Any]:
    """Refuses an argument that would change values and is not supported."""
    with as_tensorflow_errors():
        if named.pop("gradient_predivide_factor", 1.0) != 1.0:
            raise InputError("gradient_predivide_factor is not supported: leave it out, means are computed by servers", "argument")
        if named.pop("average_aggregated_gradients", False) and named.get("backward_passes_per_step", 1) != 1:
            raise InputError("average_aggregated_gradients is not supported: pass gradient_accumulation_steps to the optimizer", "argument")
        if named.pop("process_set", None) is not None or named.pop("groups", None) is not None:
            raise InputError("process_set and groups are not supported: leave them out", "argument")
    for without_effect in ("num_groups", "scale_local_gradients"):
        named.pop(without_effect, None)
    return named


def _none_left(named: dict[str, Any]) -> None:
    if named:
        raise TypeError(f"unexpected arguments: {', '.join(named)}")


_ABSENT = {
    *("Adasum", "Max", "Min", "Product", "PartialDistributedOptimizer", "ProcessSet", "SyncBatchNormalization", "allgather_object"),
    *("add_process_set", "alltoall", "broadcast_global_variables", "broadcast_object", "elastic", "global_process_set"),
    *("grouped_allgather", "grouped_allreduce", "grouped_reducescatter", "join", "local_rank_op", "local_size_op", "rank_op"),
    *("reducescatter", "remove_process_set", "size_op", "start_timeline", "stop_timeline", "BroadcastGlobalVariablesHook"),
    *("BestModelCheckpoint", "PartialDistributedGradientTape", "broadcast_", "broadcast_object_fn", "get_pushpull_speed"),
    *("is_homogeneous", "process_set_included_op", "resume", "suspend"),
}


def missing(module: str) -> Callable[[str], Any]:
    """`__getattr__` of a module that replaces one of Horovod or BytePS."""

    def attribute(name: str) -> Any:
        if name in _ABSENT:
            raise AttributeError(f"Gradwire does not have {module}.{name}; docs/tensorflow.md lists what it has")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return attribute
