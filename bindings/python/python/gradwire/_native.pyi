# What `gradwire._native` has; tests compare it with the module. Programs use `gradwire`, which adds the rest.
from collections.abc import Callable, Generator, Sequence
from typing import Any, Optional, final

import numpy as np

__all__ = ["Client", "Handle", "Memory", "MxEngine", "MxKey", "Pending", "Table", "Tensor", "__version__", "enable_logging", "key_of_name", "settings_reference"]

__version__: str

def key_of_name(name: str) -> int:
    """The key of a name: the first 8 bytes of its SHA-256, little-endian, with the highest bit set."""

def settings_reference() -> list[tuple[str, str, str]]:
    """Every setting: dotted name, environment variable, default."""

def enable_logging(filter: str = "info", json: bool = False) -> None:
    """Logs of the library go to standard error from now on, as a filter such as "warn,fabric=debug" says."""

class Tensor:
    """A declared tensor; `Client.declare` makes one."""

    @property
    def key(self) -> int:
        """Its key."""
    @property
    def name(self) -> str:
        """Its name; empty where it was declared by key."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's type of its elements."""
    @property
    def element(self) -> str:
        """Gradwire's name of that type: "f32", "bf16", …"""
    @property
    def size(self) -> int:
        """Its elements."""
    @property
    def nbytes(self) -> int:
        """Its bytes."""
    @property
    def sent_nbytes(self) -> int:
        """Bytes of a contribution as it is sent."""
    @property
    def placement(self) -> str:
        """How contributions to it travel now."""
    @property
    def priority(self) -> int:
        """What operations on it have where none is given."""
    def with_chunk_versions(self) -> Tensor:
        """The same tensor, whose handles tell the version of each chunk: `Handle.chunk_versions`."""

class Table:
    """A table of rows, as `gradwire.Table` has it."""

    @property
    def key(self) -> int:
        """Its key."""
    @property
    def width(self) -> int:
        """Numbers of a row."""
    def _push(self, ids: Any, values: Any, step: Optional[int]) -> Pending: ...
    def _pull(self, ids: Any, out: Any) -> Pending: ...

@final
class Pending:
    """Rows or a call in flight. Dropping it cancels nothing."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until it has ended; without `timeout` (seconds) to its own deadline. Returns the array of a pull, a call's
        `Reply`, and None of a push; raises what went wrong. Waiting again tells the same again. When `timeout` is over it
        raises WaitTimeout, and the request goes on."""
    def done(self) -> bool:
        """Has it ended, well or not?"""
    def add_done_callback(self, callback: Callable[[Pending], object]) -> None:
        """Calls `callback(handle)` when it has ended: on a thread of the library's, or on this one if it has ended."""
    def __await__(self) -> Generator[Any, None, Any]:
        """As `wait`, without a thread that waits."""

@final
class Memory:
    """A stretch of the library's memory, for numpy to make an array of."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def nbytes(self) -> int: ...

@final
class Handle:
    """An operation in flight. Dropping it cancels nothing; a pull into an array of your own is then not copied there."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until it has ended; without `timeout` (seconds) to its own deadline, deadlines.operation_ms. Returns the
        array of a pull, and None of a push; raises what went wrong. Waiting again tells the same again. When `timeout` is
        over it raises WaitTimeout, and the operation goes on."""
    def done(self) -> bool:
        """Has it ended, well or not?"""
    @property
    def version(self) -> int | None:
        """The version that was published or landed, of several chunks' the least; None before the end, and after an
        error."""
    @property
    def chunk_versions(self) -> list[int] | None:
        """The version of each chunk, in order, of a tensor `with_chunk_versions`; None before the end, and of others."""
    @property
    def late_chunks(self) -> int | None:
        """Chunks of the contribution that came when their round had ended without them, and were dropped: only of tensors
        with backup workers. None before the end, and after an error."""
    def add_done_callback(self, callback: Callable[[Handle], object]) -> None:
        """Calls `callback(handle)` when it has ended: on a thread of the library's, or on this one if it has ended, or on
        that of another's `wait`."""
    def __await__(self) -> Generator[Any, None, Any]:
        """As `wait`, without a thread that waits."""

class Client:
    def __new__(cls, config: str | None = None, given: Sequence[tuple[str, str]] = ...) -> Client: ...
    @property
    def rank(self) -> int:
        """This worker's rank."""
    @property
    def workers(self) -> int:
        """How many workers the job has."""
    @property
    def servers(self) -> int:
        """How many servers the job has."""
    @property
    def mode(self) -> str:
        """The mode of tensors that do not say theirs: "sync", "async" or "bounded:N"."""
    @property
    def transport(self) -> str:
        """The drivers in use: "shm", "tcp", "shm+tcp", …"""
    @property
    def _links(self) -> list[tuple[int, str, str]]: ...
    @property
    def _warnings(self) -> list[str]: ...
    @property
    def dead(self) -> str | None:
        """Why the job ended, where it did."""
    def stats(self) -> dict[str, int]:
        """Counts of this worker's operations and bytes, and of arrays that were sent from where they lie."""
    def _declare(self, specs: Sequence[tuple[str, Sequence[int], Any, int]]) -> list[Tensor]: ...
    def _change_rule(self, tensor: Tensor, rule: str) -> int: ...
    def _resume(self, tensors: Sequence[Tensor]) -> int: ...
    def _checkpoint(self, tensors: Sequence[Tensor], timeout: float) -> str: ...
    def _empty(self, shape: Sequence[int], dtype: str, numpy: Any) -> np.ndarray[Any, Any]: ...
    def init_start(self, tensor: Tensor, array: Any) -> Handle:
        """As `init`, and does not wait. Wait for it before a pull, which does not wait for another rank's value."""
    def push(self, tensor: Tensor, array: Any, priority: int | None = None) -> Handle:
        """Contributes a gradient to the tensor's next round. Leave the array alone until the handle is done."""
    def pull(self, tensor: Tensor, out: Any = None) -> Handle:
        """Brings the weights of the last round this worker contributed to, or later: into `out`, or a new array in the
        library's memory, which the handle's `wait` returns."""
    def push_pull(self, tensor: Tensor, array: Any, out: Any = None, priority: int | None = None) -> Handle:
        """Contributes a gradient, and brings the weights of that round as `pull` does. `out` may be `array`."""
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
        """Calls the handler that a server's program has registered under `app`, with a few bytes and an array, or bytes,
        of any length, which are copied. Its `wait` returns a `Reply`. Calls to one handler of one server are taken in order,
        each once. `reply_bytes` is how long the reply's body is expected to be: a longer one costs one more way there and
        back. `timeout` is what time it has (seconds), else deadlines.operation_ms."""
    def barrier(self, name: str = "workers") -> None:
        """Waits until every worker has come to the barrier of this name, at most deadlines.barrier_ms."""
    def report_metric(self, name: str, value: float) -> None:
        """Reports a number of the training by name, such as its loss: the newest value travels with heartbeats, and the
        scheduler's page, `gradwire top` and this worker's /metrics show it. At most 16 names of 48 bytes, finite values."""
    def forget(self, array: Any) -> None:
        """The library keeps nothing of an array that was pushed any more; its next push is copied first."""
    def close(self) -> None:
        """Leaves in good order. Operations in flight end with ClosedError; arrays of `empty` stay. Again is harmless."""
    def _after_fork_in_child(self) -> None: ...
    def fail(self, reason: str) -> None:
        """Leaves because the program failed: every other member is told why."""

@final
class MxEngine:
    """A store's part in MXNet's engine. `gradwire.mxnet` makes one for a client."""

    def __new__(cls, client: Client, addresses: Sequence[int], has_on_start: bool) -> MxEngine: ...
    def key(self, tensor: Tensor, order: int) -> MxKey:
        """A key: its tensor, and an array of MXNet's (by its handle) that gives its operations their order."""

@final
class MxKey:
    """A key of a store. Its operations are first in, first out."""

    def push(self, gradient: int, priority: int) -> None:
        """Contributes a gradient, an array by its handle. Its memory is free once the operation of the engine has ended."""
    def pull(self, weights: Sequence[int], priority: int) -> None:
        """Brings the weights of the last round that this worker contributed to, into arrays by their handles."""
    def push_pull(self, gradient: int, weights: Sequence[int], priority: int) -> None:
        """Both as one operation."""
