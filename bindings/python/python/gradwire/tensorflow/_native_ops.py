"""Native operations of TensorFlow: `GradwireStart` copies a tensor into registered memory and starts its exchange, `GradwireWait` ends with
the result, which lies where it has landed. Their kernels are in Gradwire's native module and use TensorFlow's C interface, so they belong
to no release of TensorFlow. Here: whether they can be used, how they are put into graphs, and what a tensor's place at the servers is.

**Static and dynamic.** The graph decides. A tensor whose shape is known in the graph has a place of exactly its length. If a dimension is
unknown, the tensor has a place for each power of two of elements, and each round has the length that all workers pass."""

from __future__ import annotations

import ctypes
import itertools
import json
import threading
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from .. import _native
from ..client import Client
from ..codecs import Codec
from ..errors import Error, InputError, SettingError
from ..optimizers import Assign
from ._errors import as_tensorflow_errors
from ._exchange import Placed, Request, declared_name, state_of
from ._process import client_or_default

# A tensor of unknown length has room for at least so many elements.
_DYNAMIC_ELEMENTS_MIN = 1024

_lock = threading.Lock()
_why_not: str | None = None
_is_tried = False
_numbers = itertools.count(1)
_clients: weakref.WeakValueDictionary[int, Client] = weakref.WeakValueDictionary()


def are_used() -> bool:
    """Whether graphs and eager code have native operations. If not, a warning has the reason, once."""
    global _is_tried, _why_not
    with _lock:
        if not _is_tried:
            _is_tried = True
            _why_not = _register()
            if _why_not is not None:
                warnings.warn(f"gradwire.tensorflow uses Python functions, which are slower than native operations: {_why_not}", stacklevel=4)
        return _why_not is None


def _register() -> str | None:
    """Registers the operations. Returns why they cannot be used."""
    try:
        from tensorflow.python.eager import context, execute  # noqa: F401
    except ImportError as error:
        return f"TensorFlow {tf.__version__} has no {error.name}"
    found = sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.so*"))
    if not found:
        return f"{tf.sysconfig.get_lib()} has no libtensorflow_framework.so"
    try:
        library = ctypes.CDLL(str(found[0]))
        functions = [getattr(library, name) for name in _native.tensorflow_functions()]
    except (OSError, AttributeError) as error:
        return f"a function of the C interface is missing in TensorFlow {tf.__version__} ({error})"
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    try:
        _native.tensorflow_register(addresses, _place)
    except Error as error:
        return str(error)
    return None


def start(request: Request, tensor: Any, order: Any) -> Any:
    """Starts the exchange of a tensor, and returns its token. `order` is any tensor that the start waits for."""
    with as_tensorflow_errors():
        text = _text_of(request, tensor)
    attributes = {"T": tensor.dtype.as_datatype_enum, "request": text.encode()}
    [token] = _run("GradwireStart", [tensor, order], [tf.int64], attributes)
    return token


def wait(tokens: Sequence[Any], likes: Sequence[Any]) -> list[Any]:
    """The results of exchanges: tensors like those that were sent."""
    types = [like.dtype for like in likes]
    attributes = {"N": len(tokens), "T": [one.as_datatype_enum for one in types]}
    results = _run("GradwireWait", list(tokens), types, attributes)
    if not tf.executing_eagerly():
        for result, like in zip(results, likes):
            result.set_shape(like.shape)
    return results


def _run(name: str, inputs: list[Any], results: list[Any], attributes: dict[str, Any]) -> list[Any]:
    with tf.device("CPU:0"):
        if tf.executing_eagerly():
            # What the wrappers that TensorFlow generates for operations of its users call.
            from tensorflow.python.eager import context, execute

            flat = tuple(itertools.chain.from_iterable(attributes.items()))
            return list(execute.execute(name.encode(), len(results), inputs=inputs, attrs=flat, ctx=context.context()))
        graph = tf.compat.v1.get_default_graph()
        given = {key: _attribute(key, value) for key, value in attributes.items()}
        return list(graph.create_op(name, inputs, results, attrs=given, name=name).outputs)


def _attribute(name: str, value: Any) -> Any:
    """An attribute as a node of a graph has it."""
    kind = tf.compat.v1.AttrValue
    if isinstance(value, bytes):
        return kind(s=value)
    if isinstance(value, list):
        return kind(list=kind.ListValue(type=value))
    return kind(i=value) if name == "N" else kind(type=value)


def is_static(request: Request, tensor: Any) -> bool:
    """Whether a tensor has a place of exactly its length."""
    return request.parameter is not None or tensor.shape.is_fully_defined() and not request.is_of_any_length


def placed_parameter(client: Client, tensor: _native.Tensor, variable: Any) -> tuple[int, Placed]:
    """Makes a tensor that is declared already one for requests. Returns its number for `Request.parameter`, and its place, to be kept."""
    dtype = tf.as_dtype(variable.dtype)
    exchange = _native.TfExchange(client, tensor, dtype.as_datatype_enum, tensor.nbytes - 1)
    placed = Placed(tensor.name, "parameters", tuple(variable.shape), dtype.name, tensor.size, True, exchange)
    state, number = state_of(client), next(_numbers)
    with state.lock:
        state.parameters[number] = placed
    return number, placed


def _text_of(request: Request, tensor: Any) -> str:
    """The request as an attribute of an operation."""
    asked = {
        "what": request.what,
        "name": request.name,
        "average": request.average,
        "codec": None if request.codec is None else request.codec._json(),
        "priority": request.priority,
        "client": None if request.client is None else _number_of(request.client),
        # Eager kernels are kept for each request, so what may differ at each call is left out.
        "shape": None if request.is_of_any_length or tensor.shape.rank is None else tensor.shape.as_list(),
        "is_static": is_static(request, tensor),
        "parameter": request.parameter,
    }
    return json.dumps(asked)


def _number_of(client: Client) -> int:
    client = client_or_default(client)
    number: int = vars(client).setdefault("_tensorflow_number", next(_numbers))
    _clients[number] = client
    return number


class _Spelled(Codec):
    """A codec as a request spells it."""

    def __init__(self, spelled: dict[str, Any]) -> None:
        object.__setattr__(self, "_spelled", spelled)

    def _json(self) -> dict[str, Any]:
        return dict(vars(self)["_spelled"])


def _place(text: str, kind: int, size: int) -> Any:
    """Called by a kernel for a tensor of `size` bytes. Returns its exchange, or the code and the text of an error."""
    try:
        with as_tensorflow_errors():
            return _exchange_of(json.loads(text), tf.as_dtype(kind), size)
    except tf.errors.OpError as error:
        return error.error_code, error.message
    except (ValueError, KeyError, TypeError) as error:
        return tf.errors.INVALID_ARGUMENT, f"invalid attribute `request` of GradwireStart ({error}): {text}"


def _exchange_of(asked: dict[str, Any], dtype: Any, size: int) -> _native.TfExchange:
    what, name, number = asked["what"], asked["name"], asked["client"]
    client = client_or_default() if number is None else _clients.get(number)
    if client is None:
        raise SettingError(
            f"{what} of tensor {name!r}: the client with which the graph was traced (client=…) is gone: keep it, or trace the function again",
            "client",
        )
    state = state_of(client)
    if asked["parameter"] is not None:
        with state.lock:
            parameter = state.parameters.get(asked["parameter"])
        if parameter is None:
            raise SettingError(f"the optimizer that has the parameter {name!r} is gone: keep it, or trace the function again", "optimizer")
        _check_length(asked, parameter, dtype, size // dtype.size)
        return parameter.exchange
    elements = size // dtype.size
    if elements == 0:
        raise InputError(f"{what} of tensor {name!r}: a tensor without elements cannot be sent: leave it out", "wrong_shape")
    length = elements if asked["is_static"] else max(_DYNAMIC_ELEMENTS_MIN, 1 << (elements - 1).bit_length())
    # Dynamic tensors have no codec.
    key = (name, asked["average"], json.dumps(asked["codec"]), None) if asked["is_static"] else (name, asked["average"], length)
    with state.lock:
        placed = state.placed.get(key)
        if placed is None:
            placed = state.placed[key] = _declared(client, asked, dtype, length)
    _check_length(asked, placed, dtype, elements)
    return placed.exchange


def _check_length(asked: dict[str, Any], placed: Placed, dtype: Any, elements: int) -> None:
    if (placed.is_static and placed.length != elements) or placed.dtype != dtype.name:
        raise InputError(
            f"{asked['what']} of tensor {asked['name']!r}: the tensor has {elements} elements of {dtype.name}, and had {placed.length} of "
            f"{placed.dtype} before: use another name for a tensor of another length or dtype",
            "wrong_shape",
        )


def _declared(client: Client, asked: dict[str, Any], dtype: Any, length: int) -> Placed:
    is_static, average = asked["is_static"], asked["average"]
    label = declared_name(asked["name"], average) if is_static else f"tensorflow.dynamic{length}.{'mean' if average else 'sum'}.{asked['name']}"
    # A codec needs to know the length.
    codec = _Spelled(asked["codec"]) if is_static and asked["codec"] is not None else None
    rule = Assign(average=True) if average else Assign()
    tensor = client.declare(label, length, dtype.name, rule, codec, "sync", asked["priority"], not is_static, backup_workers=0)
    floor = length - 1 if is_static else 0 if length == _DYNAMIC_ELEMENTS_MIN else length // 2
    exchange = _native.TfExchange(client, tensor, dtype.as_datatype_enum, dtype.size * floor)
    shape = None if asked["shape"] is None else tuple(asked["shape"])
    return Placed(asked["name"], "mean" if average else "sum", shape, dtype.name, length, is_static, exchange)
