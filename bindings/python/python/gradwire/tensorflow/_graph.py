"""Runs requests for tensors, eagerly and in graphs. One operation starts an exchange and returns its number, another one waits for the
numbers of several exchanges. They are native operations (`_native_ops`); for broadcasts, and where native operations cannot be used,
they are Python functions in the graph.

**Order.** TensorFlow runs operations of a graph in any order, perhaps on one thread, and each worker in its own order. If worker 0 started
"a" and waited, and worker 1 started "b" and waited, both would wait for ever. So all starts of a process are in the order of the program,
which is the same on all workers: each start reads a variable, and then assigns it. TensorFlow keeps the order of reads and assignments,
also through branches and loops. A start never waits for an operation that another worker has not started yet, and a wait comes after the
starts of its whole group. Of the operations that somebody waits for, the first one in this order has therefore been started by everybody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..dtypes import element_of
from ..errors import InputError
from . import _native_ops
from ._errors import as_tensorflow_errors
from ._exchange import Request, Tokens, start

_tokens = Tokens()
_order_lock = threading.Lock()
_order_variable: Any = None


def run(requests: Sequence[Request], tensors: Sequence[Any]) -> list[Any]:
    """The results for tensors, which are in flight at the same time."""
    for request, tensor in zip(requests, tensors):
        _check(request, tensor)
    if _is_native(requests):
        return _run_natively(requests, tensors)
    if tf.executing_eagerly():
        with as_tensorflow_errors():
            operations = [start(request, _array_of(tensor)) for request, tensor in zip(requests, tensors)]
            results = [operation.wait() for operation in operations]
            return [tf.convert_to_tensor(result) for result in results]
    return _wait_in_graph([_start_in_graph(*pair) for pair in zip(requests, tensors)], tensors)


def run_push(request: Request, tensor: Any) -> None:
    """Starts a push, which nothing waits for."""
    _check(request, tensor)
    if _is_native([request]):
        _start_natively(request, tensor)
    elif tf.executing_eagerly():
        with as_tensorflow_errors():
            start(request, _array_of(tensor))
    else:
        _start_in_graph(request, tensor)


def run_in_order(function: Callable[..., list[Any]], tensors: Sequence[Any], likes: Sequence[Any]) -> list[Any]:
    """Calls a function of arrays that may wait for other workers, in the order of the program with all starts. Returns tensors like
    `likes`."""
    if tf.executing_eagerly():
        with as_tensorflow_errors():
            return [tf.convert_to_tensor(one) for one in function(*map(_array_of, map(tf.convert_to_tensor, tensors)))]
    _refuse_xla("a step with parameters at servers")

    def call(order: Any, *arrays: Any) -> list[Any]:
        return [order, *function(*map(np.asarray, arrays))]

    order = _order()
    types = [tf.int64, *(like.dtype for like in likes)]
    token, *results = tf.numpy_function(call, [order.read_value(), *tensors], types, name="gradwire_needs_jit_compile_False")
    token.set_shape(())
    order.assign(token)
    for result, like in zip(results, likes):
        result.set_shape(like.shape)
    return results


def _check(request: Request, tensor: Any) -> None:
    """Raises an error for a tensor that cannot travel, and in a graph that cannot call Python."""
    # Bits travel in a broadcast.
    has_bits = request.what == "broadcast" and (tensor.dtype.is_numpy_compatible and tensor.dtype not in (tf.string, tf.resource))
    if not has_bits:
        try:
            element_of(tensor.dtype.name)
        except InputError as error:
            raise tf.errors.InvalidArgumentError(None, None, f"{request.text}: {error}") from error
    if tensor.shape.num_elements() == 0:
        raise tf.errors.InvalidArgumentError(None, None, f"{request.text}: a tensor without elements cannot be sent: leave it out")
    _refuse_xla(request.text)


def _refuse_xla(what: str) -> None:
    if not tf.executing_eagerly() and _is_compiled():
        raise tf.errors.UnimplementedError(
            None,
            None,
            f"{what} cannot be compiled by XLA, which has no kernel for it: pass jit_compile=False to tf.function or model.compile",
        )


def _is_compiled() -> bool:
    """Whether the graph is being traced for `jit_compile=True`. TensorFlow has no public name for this."""
    try:
        from tensorflow.python.ops import control_flow_util
    except ImportError:
        return False
    is_in_xla = getattr(control_flow_util, "GraphOrParentsInXlaContext", None)
    return is_in_xla is not None and bool(is_in_xla(tf.compat.v1.get_default_graph()))


def _array_of(tensor: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.numpy()
    # A scalar is a number of numpy, and no array.
    return np.asarray(array)


def _order() -> Any:
    global _order_variable
    with _order_lock:
        if _order_variable is None:
            with tf.init_scope(), tf.device("CPU:0"):
                _order_variable = tf.Variable(0, trainable=False, dtype=tf.int64, name="gradwire_order")
        return _order_variable


def _is_native(requests: Sequence[Request]) -> bool:
    """Broadcasts happen once, and copy bits: they stay in Python."""
    return all(request.what != "broadcast" for request in requests) and _native_ops.are_used()


def _run_natively(requests: Sequence[Request], tensors: Sequence[Any]) -> list[Any]:
    # Lengths of which the graph knows nothing, and that nobody has compared before.
    unknown = [
        (request, tensor)
        for request, tensor in zip(requests, tensors)
        if request.what != "pull" and not request.is_of_any_length and not _native_ops.is_static(request, tensor)
    ]
    # Tensors of other lengths would wait for each other, or spoil a round.
    with tf.control_dependencies([_compared(*zip(*unknown))] if unknown else []):
        tokens = [_start_natively(*pair) for pair in zip(requests, tensors)]
    return _native_ops.wait(tokens, tensors)


def _compared(requests: Sequence[Request], tensors: Sequence[Any]) -> Any:
    """An assertion that the tensors have the same lengths on all workers."""
    lengths = tf.stack([tf.size(tensor, tf.int64) for tensor in tensors])
    # If the sum of the squares of n numbers, times n, is the square of their sum, they are the same. In two halves, which do not overflow.
    halves = tf.stack([lengths % 2**20, lengths // 2**20])
    mine = tf.concat([halves, halves * halves, tf.ones_like(halves)], axis=0)
    request = Request("push_pull", f"{requests[0].name}.lengths.{len(requests)}", average=False, client=requests[0].client)
    [sums] = _native_ops.wait([_start_natively(request, mine)], [mine])
    are_same = tf.reduce_all(sums[2:4] * sums[4:6] == sums[0:2] * sums[0:2])
    text = f"{requests[0].text}: other workers have another length: pass the same shape on all workers"
    return tf.debugging.Assert(are_same, [text, lengths])


def _start_natively(request: Request, tensor: Any) -> Any:
    if tf.executing_eagerly():
        return _native_ops.start(request, tensor, tf.constant(0, tf.int64))
    order = _order()
    token = _native_ops.start(request, tensor, order.read_value())
    token.set_shape(())
    order.assign(token)
    return token


def _start_in_graph(request: Request, tensor: Any) -> Any:
    def begin(array: np.ndarray[Any, Any], _: Any) -> np.int64:
        return np.int64(_tokens.add(request, start(request, np.asarray(array))))

    order = _order()
    token = tf.numpy_function(begin, [tensor, order.read_value()], tf.int64, name="gradwire_needs_jit_compile_False")
    token.set_shape(())
    # The next start reads the variable, and so comes after this one.
    order.assign(token)
    return token


def _wait_in_graph(tokens: list[Any], likes: Sequence[Any]) -> list[Any]:
    def end(numbers: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        operations = [_tokens.take(int(number)) for number in numbers]
        return [operation.wait() for operation in operations]

    results = tf.numpy_function(end, [tf.stack(tokens)], [like.dtype for like in likes], name="gradwire_wait")
    for result, like in zip(results, likes):
        result.set_shape(like.shape)
    return list(results)
