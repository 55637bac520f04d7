"""The exchange of one named tensor with the servers: its buffer in registered memory, and its operations. Each operation copies the
tensor into the buffer once, and its result out of the buffer once. It knows arrays of numpy only; TensorFlow's side is `_graph`."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._native import Handle, TfExchange
from ..client import Client
from ..codecs import Codec
from ..errors import Error, InputError, OperationError
from ..optimizers import Assign
from ._process import client_or_default

Array = np.ndarray[Any, Any]

# TensorFlow takes over an array without a copy if its address is a multiple of this.
_ALIGNED_BYTES = 64
# Operations of one name whose results nobody has fetched. They remain if a step fails between start and wait.
UNFETCHED_MAX = 256


@dataclass(frozen=True)
class Request:
    """What is asked for a tensor. All workers ask the same."""

    what: str
    name: str
    average: bool = True
    codec: Codec | None = None
    root: int = 0
    priority: int = 0
    client: Client | None = None
    #: Its length may differ between two operations, whatever the graph knows of it.
    is_of_any_length: bool = False
    #: The number of a tensor that is declared already, with a rule of its own.
    parameter: int | None = None

    @property
    def text(self) -> str:
        """How errors name it."""
        return f"{self.what} of tensor {self.name!r}"


class Operation:
    """An operation in flight."""

    def __init__(self, exchange: Exchange, request: Request, handle: Handle, shape: tuple[int, ...], dtype: Any) -> None:
        self._exchange, self._request, self._handle = exchange, request, handle
        self._shape, self._dtype = shape, dtype
        self._lock = threading.Lock()
        self._result: Array | None = None
        self._error: Error | None = None
        self._is_done = False

    def wait(self) -> Array:
        """Waits, and returns the result in memory of its own. Each further call has the same result."""
        with self._lock:
            if not self._is_done:
                try:
                    self._handle.wait()
                    self._result = self._exchange.result(self._request, self._shape, self._dtype)
                except Error as error:
                    self._error = error
                self._is_done = True
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def finish(self) -> None:
        """Waits, because the buffer is needed for another operation. The error of a push is raised here, as nothing waits for a push."""
        try:
            self.wait()
        except Error:
            if self._request.what == "push":
                raise


class Exchange:
    """A tensor that is declared at the servers, and its buffer."""

    def __init__(self, client: Client, request: Request, elements: int, dtype: Any) -> None:
        self._client = client
        rule = Assign(average=True) if request.average and request.what != "broadcast" else Assign()
        name = declared_name(request.name, request.average)
        if request.what == "broadcast":
            # Variables of one name may have several sizes, as those of two models.
            name = f"tensorflow.broadcast.{request.name}.{elements}"
        self.elements, self.dtype = elements, np.dtype(dtype)
        self._declared = client.declare(name, elements, dtype, rule, request.codec, "sync", request.priority, backup_workers=0)
        self._buffer = client.empty(elements, dtype)
        self._lock = threading.Lock()
        self._last: Operation | None = None

    def start(self, request: Request, array: Array) -> Operation:
        """Starts an operation. The array may be modified again when this returns."""
        with self._lock:
            if self._last is not None:
                # Its result is in the buffer. It was started on all workers before this operation, so it ends without this one.
                self._last.finish()
            handle = self._begin(request, array)
            self._last = Operation(self, request, handle, array.shape, array.dtype)
            return self._last

    def _begin(self, request: Request, array: Array) -> Handle:
        if request.what == "pull":
            return self._client.pull(self._declared, out=self._buffer)
        if request.what == "broadcast":
            is_root = self._client.rank == request.root
            self._buffer[:-1] = _words(array) if is_root else 0
            self._buffer[-1] = is_root
        else:
            np.copyto(self._buffer, array.reshape(-1))
        if request.what == "push":
            return self._client.push(self._declared, self._buffer)
        return self._client.push_pull(self._declared, self._buffer, out=self._buffer)

    def result(self, request: Request, shape: tuple[int, ...], dtype: Any) -> Array:
        """The result of the operation that has ended last."""
        if request.what == "push":
            return np.empty(0, dtype)
        got = aligned(shape, dtype)
        if request.what == "broadcast":
            if self._buffer[-1] != 1:
                # If a worker leaves, the others continue without it, and would take zeros for its values.
                raise OperationError(
                    f"{request.text} from rank {request.root} failed: worker {request.root} has left the job before it sent its values",
                    "root_left",
                )
            np.copyto(_words(got), self._buffer[:-1])
        else:
            np.copyto(got, self._buffer.reshape(shape))
        return got


def declared_name(name: str, average: bool) -> str:
    """The name at the servers."""
    return f"tensorflow.{'mean' if average else 'sum'}.{name}"


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """A new array whose memory TensorFlow takes over."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNED_BYTES, np.uint8)
    skip = -memory.ctypes.data % _ALIGNED_BYTES
    return memory[skip : skip + size].view(dtype).reshape(shape)


def _words(array: Array) -> Array:
    """The bits of a contiguous array as integers: a sum of floats with zeros would lose the sign of zeros."""
    flat: Array = array.reshape(-1).view(np.uint8)
    words: Array = flat.view(np.int32) if flat.size % 4 == 0 else flat
    return words


@dataclass(frozen=True, eq=False)
class Placed:
    """A tensor that native operations exchange, and its place."""

    name: str
    #: What the servers do with it: "mean", "sum", or "parameters".
    rule: str
    #: In the graph that used it first: None for a dimension that is unknown there. None if not even their number is known.
    shape: tuple[int | None, ...] | None
    dtype: str
    #: Elements that the place has room for.
    length: int
    is_static: bool
    exchange: TfExchange


@dataclass
class State:
    """What this package keeps with a client, so that it ends with the client."""

    exchanges: dict[tuple[Any, ...], Exchange] = field(default_factory=dict)
    placed: dict[tuple[Any, ...], Placed] = field(default_factory=dict)
    # Parameters at servers, by their numbers in requests. Their optimizers have them.
    parameters: weakref.WeakValueDictionary[int, Placed] = field(default_factory=weakref.WeakValueDictionary)
    # Of optimizers whose parameters are at the servers. A second one must not get the weights of the first.
    prefixes: set[str] = field(default_factory=set)
    # Declaring a tensor. An exchange has a lock of its own for its operations.
    lock: threading.Lock = field(default_factory=threading.Lock)


def state_of(client: Client | None) -> State:
    """The state of this package for a client, or else for the client of the process."""
    state: State = vars(client_or_default(client)).setdefault("_tensorflow", State())
    return state


def start(request: Request, array: Array) -> Operation:
    """Starts an operation of the client that the request names, or else of the client of the process."""
    client = client_or_default(request.client)
    if not 0 <= request.root < client.workers:
        raise InputError(
            f"{request.text}: invalid root_rank {request.root}: pass a worker's rank from 0 to {client.workers - 1}", "root_rank"
        )
    array = np.ascontiguousarray(array).reshape(array.shape)
    state = state_of(client)
    elements, dtype = array.size, array.dtype
    key: tuple[Any, ...] = (request.name, request.average, request.codec)
    if request.what == "broadcast":
        words = _words(array)
        elements, dtype = words.size + 1, words.dtype
        key = ("broadcast", request.name, elements)
    with state.lock:
        exchange = state.exchanges.get(key)
        if exchange is None:
            exchange = state.exchanges[key] = Exchange(client, request, elements, dtype)
    if (exchange.elements, exchange.dtype) != (elements, dtype):
        raise InputError(
            f"{request.text}: the tensor has {elements} elements of {dtype}, and had {exchange.elements} of {exchange.dtype} before: "
            "use another name for a tensor of another length or dtype",
            "wrong_shape",
        )
    return exchange.start(request, array)


class Tokens:
    """Operations that a graph has started and not waited for yet, by number."""

    def __init__(self) -> None:
        self._operations: OrderedDict[int, Operation] = OrderedDict()
        self._by_name: dict[tuple[str, str], deque[int]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def add(self, request: Request, operation: Operation) -> int:
        """Keeps an operation, and returns its number. Of one name, the oldest one is dropped if there are too many."""
        with self._lock:
            number = next(self._numbers)
            self._operations[number] = operation
            numbers = self._by_name.setdefault((request.what, request.name), deque())
            numbers.append(number)
            if len(numbers) > UNFETCHED_MAX:
                self._operations.pop(numbers.popleft(), None)
            return number

    def take(self, number: int) -> Operation:
        """The operation of a number, once."""
        with self._lock:
            operation = self._operations.pop(number, None)
        if operation is None:
            raise OperationError(
                f"an operation has no result: more than {UNFETCHED_MAX} operations of its name were started after it and not waited "
                "for; use more names",
                "dropped",
            )
        return operation
