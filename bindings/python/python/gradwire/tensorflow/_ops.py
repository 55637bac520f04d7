"""Named tensors, summed or averaged over workers, and broadcasts. What they have in common: names, gradients, sparse tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from ..client import Client
from ..codecs import Codec
from ..errors import InputError
from ._compression import Compression, codec_of
from ._errors import as_tensorflow_errors
from ._exchange import Request
from ._graph import run, run_push

# The number of the next operation without a name in a graph.
_UNNAMED = "_gradwire_unnamed"
# Branches and loops. Their names have numbers of the process.
_CONTROL_FLOW_GRAPHS = ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph")


def push_pull(
    tensor: Any, name: str | None = None, average: bool = True, *, compression: Any = Compression.none, client: Client | None = None
) -> Any:
    """Returns the average (or sum) of a tensor over all workers, eagerly or inside a tf.function. Every worker must use the same name,
    shape and dtype. Gradients are propagated through it, and are averaged (or summed) as well. `tf.IndexedSlices` become dense.
    Without a name, the tensor is named by its shape and dtype, and inside a tf.function also by its number in this function."""
    [result] = push_pull_all([tensor], [name], average=average, compression=compression, client=client)
    return result


def push_pull_all(
    tensors: Sequence[Any],
    names: Sequence[str | None],
    *,
    average: bool = True,
    compression: Any = Compression.none,
    client: Client | None = None,
) -> list[Any]:
    """Like `push_pull` for several tensors, which are in flight at the same time. Earlier ones have a higher priority."""
    with as_tensorflow_errors():
        codec = codec_of(compression)
        if len(tensors) != len(names):
            raise InputError(f"{len(tensors)} tensors have {len(names)} names: pass one for each, or None", "names")
    dense = [tf.convert_to_tensor(one) for one in tensors]
    named = [name or unnamed("push_pull", one) for name, one in zip(names, dense)]
    requests = [_request(name, one, average, codec, -at, client) for at, (name, one) in enumerate(zip(named, dense))]
    results = run(requests, [tf.stop_gradient(one) for one in dense])
    return [_attached(one, result, request) for one, result, request in zip(dense, results, requests)]


def sums_of_any_length(tensors: Sequence[Any], names: Sequence[str], client: Client | None) -> list[Any]:
    """The sums of tensors over all workers, without gradients. First dimensions may differ between two calls, but not between workers."""
    requests = [
        Request("push_pull", name, average=False, priority=-at, client=client, is_of_any_length=True) for at, name in enumerate(names)
    ]
    return run(requests, [tf.stop_gradient(one) for one in tensors])


def push(tensor: Any, name: str, average: bool = True, *, client: Client | None = None) -> None:
    """Contributes a tensor to the next round of a name, and does not wait. `pull` fetches the result. An error of the push is raised by
    the next operation of this name."""
    tensor = tf.convert_to_tensor(tensor)
    run_push(_request(name, tensor, average, None, 0, client, "push"), tensor)


def pull(like: Any, name: str, average: bool = True, *, client: Client | None = None) -> Any:
    """Returns the average (or sum) of the last round that this worker has pushed to. `like` has the shape and the dtype, such as the
    tensor that was pushed."""
    like = tf.stop_gradient(tf.convert_to_tensor(like))
    [result] = run([_request(name, like, average, None, 0, client, "pull")], [like])
    return result


def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None, *, client: Client | None = None) -> Any:
    """Returns the tensor of `root_rank` on every worker. Every bit is kept. Gradients are not propagated."""
    tensor = tf.stop_gradient(tf.convert_to_tensor(tensor))
    name = name or unnamed("broadcast", tensor)
    [result] = run([Request("broadcast", name, root=root_rank, client=client)], [tensor])
    return result


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, prefix: str = "variable.", *, client: Client | None = None
) -> None:
    """Copies the values of `root_rank` to the variables of every worker: those of TensorFlow or of Keras. Every worker must pass the
    same variables in the same order. Every bit is kept. Inside a tf.function, too."""
    some = [one for one in variables if one.shape.num_elements() != 0]
    if not some:
        return
    requests = [
        Request("broadcast", f"{prefix}{at}.{name_of(one)}", root=root_rank, client=client) for at, one in enumerate(some)
    ]
    for variable, value in zip(some, run(requests, [tf.convert_to_tensor(one) for one in some])):
        variable.assign(value)


def name_of(variable: Any) -> str:
    """The name of a variable of Keras or TensorFlow, or of a tensor that has one."""
    if hasattr(variable, "path"):
        return str(variable.path)
    try:
        return str(variable.name).partition(":")[0]
    except AttributeError:
        # Eager tensors have none.
        return "tensor"


def _request(
    name: str, tensor: Any, average: bool, codec: Codec | None, priority: int, client: Client | None, what: str = "push_pull"
) -> Request:
    return Request(what, name, average, codec if tensor.dtype == tf.float32 else None, 0, priority, client)


def _attached(tensor: Any, result: Any, request: Request) -> Any:
    """The result, through which gradients are propagated to the tensor."""
    if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return result

    def attach(_: Any, result: Any) -> Any:
        def gradient(upstream: Any) -> tuple[Any, None]:
            mean = push_pull(
                upstream, f"{request.name}.gradient", request.average, compression=request.codec, client=request.client
            )
            return mean, None

        return tf.identity(result), gradient

    return tf.custom_gradient(attach)(tensor, result)


def unnamed(what: str, tensor: Any, shape: Any = None) -> str:
    """A name that follows from the program alone. Eager operations end before the next one begins, so those of one kind share a name."""
    shape = tensor.shape if shape is None else shape
    lengths = "x".join(map(str, shape.as_list())) if shape.is_fully_defined() else "unknown"
    kind = f"{what}.{tensor.dtype.name}.{lengths}"
    if tf.executing_eagerly():
        return f"unnamed.{kind}"
    # A function that is traced again, perhaps on one worker only, has the same names again.
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _CONTROL_FLOW_GRAPHS and graph.outer_graph is not None:
        graph = graph.outer_graph
    number = getattr(graph, _UNNAMED, 0)
    setattr(graph, _UNNAMED, number + 1)
    return f"unnamed.{graph.name if hasattr(graph, 'name') else 'graph'}.{number}.{kind}"
