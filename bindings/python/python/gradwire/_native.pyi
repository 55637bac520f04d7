# What `gradwire._native` has; tests compare it with the module. Programs use `gradwire`, which adds the rest.
from collections.abc import Callable, Generator, Sequence
from typing import Any, Optional, final

import numpy as np

__all__ = ["Client", "Handle", "Memory", "MxEngine", "MxKey", "Pending", "Table", "Tensor", "TfExchange", "__version__", "elements", "enable_logging", "key_of_name", "serve", "settings_reference", "tensorflow_forget", "tensorflow_functions", "tensorflow_register", "transports"]

__version__: str

def key_of_name(name: str) -> int:
    """Returns the key of a name: the first 8 bytes of its SHA-256, little-endian, with the highest bit set."""

def settings_reference() -> list[tuple[str, str, str]]:
    """Returns all settings, each as dotted name, environment variable and default."""

def elements() -> list[tuple[str, str]]:
    """Returns the names of all element types: numpy's (or ml_dtypes') and Gradwire's."""

def transports() -> list[str]:
    """Returns the names of all transports, in order of preference."""

def enable_logging(filter: str = "info", json: bool = False) -> None:
    """Writes the logs of the library to standard error, filtered by level and module, for example "info" or
    "warn,fabric=debug". Call it at most once per process."""

def tensorflow_functions() -> list[str]:
    """The names of the functions of TensorFlow's C interface that `tensorflow_register` needs, in order."""

def tensorflow_register(addresses: Sequence[int], place: Any) -> None:
    """Registers the operations GradwireStart and GradwireWait with TensorFlow, once. `addresses` are those of `tensorflow_functions`.
    Kernels call `place(request, kind, nbytes)` for the TfExchange of a tensor, or for the code and the text of an error."""

def tensorflow_forget() -> None:
    """Kernels call `place` again: the client of the process has changed."""

def serve(words: Sequence[str], mark: str, app: int, handler: Any) -> int:
    """Runs the program `gradwire-server` in this process until its job ends, and returns its exit code. Calls to `app` go to the handler;
    servers say that they have it by an update rule named `mark`. `words` are the program's name and arguments."""

class Tensor:
    """A declared tensor; `Client.declare` returns one."""

    @property
    def key(self) -> int:
        """The key of the tensor."""
    @property
    def name(self) -> str:
        """The name of the tensor; empty if it was declared by a number."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
    @property
    def element(self) -> str:
        """Gradwire's name of the element type: "f32", "bf16", …"""
    @property
    def size(self) -> int:
        """The number of elements."""
    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
    @property
    def sent_nbytes(self) -> int:
        """The size in bytes of one contribution as it is sent (after compression)."""
    @property
    def placement(self) -> str:
        """How contributions to the tensor currently travel: "slot", "static", "rendezvous-read" or "rendezvous-write"."""
    @property
    def priority(self) -> int:
        """The priority of operations on this tensor that do not pass one."""
    def with_chunk_versions(self) -> Tensor:
        """Returns the same tensor; its handles also have the version of each chunk in `Handle.chunk_versions`."""

class Table:
    """The native half of `gradwire.Table`."""

    @property
    def key(self) -> int:
        """The key of the table."""
    @property
    def width(self) -> int:
        """The number of elements in a row."""
    def _push(self, ids: Any, values: Any, step: Optional[int]) -> Pending: ...
    def _pull(self, ids: Any, out: Any) -> Pending: ...

@final
class Pending:
    """A request for rows, or a call, in flight. Dropping the object does not cancel the request."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the request has completed, at most until its deadline. Returns the array of a pull, the `Reply` of a
        call, and None for a push; raises the error of a failed request. Each further call has the same result. If `timeout`
        (seconds) passes first, raises WaitTimeout, and the request continues."""
    def done(self) -> bool:
        """Whether the request has completed or failed."""
    def add_done_callback(self, callback: Callable[[Pending], object]) -> None:
        """Calls `callback(handle)` when the request has ended: on a thread of the library, or at once on this thread if it
        has already ended."""
    def __await__(self) -> Generator[Any, None, Any]:
        """Like `wait`, without blocking a thread."""

@final
class Memory:
    """A block of registered memory; numpy makes an array of it."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def nbytes(self) -> int: ...

@final
class Handle:
    """An operation in flight. Dropping the handle does not cancel the operation, but the result of a pull is then not copied
    into an array of your own."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the operation has completed, at most until its deadline: deadlines.operation_ms for servers,
        deadlines.busy_ms for other workers. Returns the array of a pull, and None for a push; raises the error of a failed
        operation. Each further call has the same result. If `timeout` (seconds) passes first, raises WaitTimeout, and the
        operation continues."""
    def done(self) -> bool:
        """Whether the operation has completed or failed."""
    @property
    def version(self) -> int | None:
        """The version that was published or received, the lowest of all chunks; None while in flight, and after an error."""
    @property
    def chunk_versions(self) -> list[int] | None:
        """The version of each chunk, in order, for a tensor `with_chunk_versions`; otherwise, and while in flight, None."""
    @property
    def late_chunks(self) -> int | None:
        """The number of chunks that arrived after their round had completed without them, and were dropped (tensors with
        backup workers only). None while in flight, and after an error."""
    def add_done_callback(self, callback: Callable[[Handle], object]) -> None:
        """Calls `callback(handle)` when the operation has ended: on a thread of the library, on the thread of another `wait`,
        or at once on this thread if it has already ended."""
    def __await__(self) -> Generator[Any, None, Any]:
        """Like `wait`, without blocking a thread."""

class Client:
    def __new__(cls, config: str | None = None, given: Sequence[tuple[str, str]] = ...) -> Client: ...
    @property
    def rank(self) -> int:
        """The rank of this worker."""
    @property
    def workers(self) -> int:
        """The number of workers of the job."""
    @property
    def servers(self) -> int:
        """The number of servers of the job."""
    @property
    def mode(self) -> str:
        """The default mode of tensors (`cluster.mode`): "sync", "async" or "bounded:N"."""
    @property
    def transport(self) -> str:
        """The transport drivers in use: "shm", "tcp", "shm+tcp", …"""
    @property
    def _links(self) -> list[tuple[int, str, str]]: ...
    @property
    def _warnings(self) -> list[str]: ...
    @property
    def dead(self) -> str | None:
        """Why the job ended; None while it runs."""
    def stats(self) -> dict[str, int]:
        """Returns counters of this worker's operations and bytes, and of arrays that were sent without a copy."""
    def _declare(self, specs: Sequence[tuple[str, Sequence[int], Any, int]]) -> list[Tensor]: ...
    def _change_rule(self, tensor: Tensor, rule: str) -> int: ...
    @property
    def _has_rejoined(self) -> bool: ...
    @property
    def _is_awaited(self) -> bool: ...
    def _resume(self, tensors: Sequence[Tensor]) -> int: ...
    def _checkpoint(self, tensors: Sequence[Tensor], timeout: float) -> str: ...
    def _empty(self, shape: Sequence[int], dtype: str, numpy: Any) -> np.ndarray[Any, Any]: ...
    def init_start(self, tensor: Tensor, array: Any) -> Handle:
        """Starts `init` without waiting for it. The value of rank 0 is used. Wait for the handle before you pull: a pull does
        not wait for the initial value of another rank."""
    def push(self, tensor: Tensor, array: Any, priority: int | None = None) -> Handle:
        """Contributes a gradient to the next round of the tensor. Do not read or write the array until the handle is done."""
    def pull(self, tensor: Tensor, out: Any = None) -> Handle:
        """Fetches the weights of the last round that this worker contributed to, or of a later round, into `out` or into a new
        array in registered memory. `wait` of the handle returns the array."""
    def push_pull(self, tensor: Tensor, array: Any, out: Any = None, priority: int | None = None) -> Handle:
        """Contributes a gradient and fetches the weights of that round, as `pull` does. `out` may be the same array as
        `array`."""
    def _table(self, spec: str) -> Table: ...
    def call(
        self,
        app: int,
        server: int = 0,
        head: bytes = ...,
        body: Any = None,
        *,
        reply_bytes: int = 0,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pending:
        """Calls the handler that is registered at a server under the number `app`. `head` are a few bytes; `body` is an array
        or bytes of any length, and is copied. `wait` of the returned object returns a `Reply`. A handler receives the calls
        of this client in order, each exactly once. `reply_bytes` is the expected length of the reply's body: a longer reply
        costs one more round trip. `timeout` is the deadline in seconds; the default is deadlines.operation_ms."""
    def barrier(self, name: str = "workers") -> None:
        """Waits until every worker has reached the barrier of this name, for at most deadlines.busy_ms. Every
        deadlines.operation_ms a warning names the workers that are missing."""
    def _barrier_within(self, name: str, seconds: float) -> None: ...
    def _missing(self, tensor: Tensor, seconds: float) -> list[int]: ...
    def report_metric(self, name: str, value: float) -> None:
        """Reports a number of the training, such as the loss, under a name. The newest value travels with the heartbeats;
        the scheduler's page, `gradwire top` and this worker's /metrics show it. At most 16 names of at most 48 bytes each;
        values must be finite."""
    def forget(self, array: Any) -> None:
        """Releases everything that the library keeps for an array that was pushed; its next push is copied first."""
    def close(self) -> None:
        """Leaves the cluster. Operations in flight end with ClosedError; arrays of `empty` stay valid. A second call does
        nothing."""
    def _after_fork_in_child(self) -> None: ...
    def fail(self, reason: str) -> None:
        """Leaves the cluster because the program failed. All other members are notified of the reason."""

@final
class MxEngine:
    """Runs operations in the order of MXNet's engine. `gradwire.mxnet` creates one for a client."""

    def __new__(cls, client: Client, addresses: Sequence[int], has_on_start: bool) -> MxEngine: ...
    def key(self, tensor: Tensor, order: int) -> MxKey:
        """Creates a key from its tensor and the handle of an MXNet array; the array orders the operations on the key."""

@final
class TfExchange:
    """The place of a tensor at the servers, for native operations of TensorFlow: for tensors of more than `floor_bytes`, and at most as
    many bytes as the declared tensor has. `kind` is TensorFlow's number of the element type."""

    def __new__(cls, client: Client, tensor: Tensor, kind: int, floor_bytes: int) -> TfExchange: ...
    @property
    def placement(self) -> str:
        """How contributions travel now: "slot", "static", "rendezvous-read" or "rendezvous-write"."""
    @property
    def counts(self) -> tuple[int, int, int]:
        """The number of operations that were started, and of the copies that they made: of inputs, and of outputs."""

@final
class MxKey:
    """A key of a store. Its operations run in the order in which they were called."""

    def push(self, gradient: int, priority: int) -> None:
        """Contributes a gradient, given by the handle of its array. The memory may be reused once the engine's operation has
        completed."""
    def pull(self, weights: Sequence[int], priority: int) -> None:
        """Fetches the weights of the last round that this worker contributed to, into the arrays of the given handles."""
    def push_pull(self, gradient: int, weights: Sequence[int], priority: int) -> None:
        """Contributes a gradient and fetches the weights of that round, as one operation."""
