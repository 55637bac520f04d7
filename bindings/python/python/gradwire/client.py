"""The client: joins a cluster, declares tensors, pushes and pulls arrays.

Do not read or write an array until the handle of the operation that uses it has completed. Arrays of `Client.empty` (and
contiguous parts of them) travel without a copy, and can be both `array` and `out` of one operation. float32 arrays of your
own are copied at the first push, and sent without a copy afterwards; arrays of other types are copied at every push.
Weights are copied once into an array of your own, by the thread that waits for the handle.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import _native, tables
from ._native import Handle, Pending, Tensor
from .codecs import Codec
from .dtypes import element_of, numpy_of
from .errors import DeclareError, Error, InputError
from .optimizers import Assign, Optimizer, Sum
from .tables import Table, Uniform

Shape = Union[int, Sequence[int]]
_KEYS = 1 << 64
_DRIVERS = tuple(_native.transports())


class Link(NamedTuple):
    """The connection of this worker to a server: its transport driver, and why it was chosen."""

    server: int
    driver: str
    why: str


@dataclass(frozen=True)
class Declaration:
    """The arguments of `Client.declare`, for `Client.declare_all`."""

    key: int | str
    shape: Shape
    dtype: Any = "float32"
    optimizer: Optimizer = Assign()
    codec: Codec | None = None
    mode: str | int | None = None
    priority: int = 0
    dynamic: bool = False
    backup_workers: int | None = None


class Reply(NamedTuple):
    """The reply of a server's handler to a call."""

    head: bytes
    body: bytes


class Client(_native.Client):
    """A worker of a cluster; `gradwire.connect` returns one. Threads may share a client, and one process may have several,
    of one cluster or of several. As a context manager it leaves the cluster at the end of the block. If an exception ends
    the block, all other members are notified of the reason."""

    _names: dict[int, str]
    _tables: dict[int, str]

    def __init__(self, config: Optional[str] = None, given: Iterable[tuple[str, str]] = ()) -> None:
        self._names, self._tables = {}, {}
        for warning in self._warnings:
            warnings.warn(warning, stacklevel=3)
        _live.add(self)

    @property
    def links(self) -> list[Link]:
        """The transport driver to each server, by rank, and why it was chosen."""
        return [Link(*link) for link in self._links]

    def declare(
        self,
        key: int | str,
        shape: Shape,
        dtype: Any = "float32",
        optimizer: Optimizer = Assign(),
        codec: Codec | None = None,
        mode: str | int | None = None,
        priority: int = 0,
        dynamic: bool = False,
        backup_workers: int | None = None,
    ) -> Tensor:
        """Declares a tensor. Every worker must declare it identically.

        `key` is a name, or a number of 64 bits. The number of a name is `gradwire.key_of_name`; two names with the same
        number are rejected. `mode` is "sync", "async", or the number of contributions by which workers may be apart; the
        default is `cluster.mode`. In mode sync, rounds do not wait for the slowest `backup_workers` workers (default
        `cluster.backup_workers`): their late chunks are dropped and counted in `Handle.late_chunks`. `priority` is the
        default priority of operations on the tensor; a higher priority goes first. The length of a `dynamic` tensor may
        differ in each round, up to the length of `shape`."""
        one = Declaration(key, shape, dtype, optimizer, codec, mode, priority, dynamic, backup_workers)
        return self.declare_all([one])[0]

    def declare_all(self, declarations: Iterable[Declaration]) -> list[Tensor]:
        """Declares several tensors in one exchange with the cluster, and returns them in the given order."""
        specs, names = [], dict(self._names)
        for declaration in declarations:
            key, name = _key_and_name(declaration.key)
            if names.setdefault(key, name) != name:
                raise DeclareError(
                    f"tensors {name!r} and {names[key]!r} have the same key {key}: rename one, or pass numbers as keys",
                    "same_key",
                )
            specs.append(_spec(declaration, key, name))
        tensors = self._declare(specs) if specs else []
        self._names = names
        return tensors

    def table(
        self,
        key: int | str,
        width: int,
        optimizer: Optimizer = Sum(),
        initial: float | Uniform = 0.0,
        admit_after: int = 1,
        rows_max: int = 0,
    ) -> Table:
        """Declares a table with rows of `width` float32 elements. Every worker must declare it identically.

        `key` is a name, or a number below 65536. `optimizer` is applied to each row separately, at each push. `initial` is
        the initial value of rows. A row is allocated at push number `admit_after`: until then, pushes to the row are
        ignored, and pulls return its initial value. If the table has more than `rows_max` rows (0: no limit), servers evict
        the least recently pushed rows."""
        number, name = tables.key_of(key)
        if self._tables.get(number, name) != name:
            raise DeclareError(
                f"tables {name!r} and {self._tables[number]!r} have the same key {number}: rename one, or pass numbers as keys",
                "same_key",
            )
        inner = self._table(tables.described(number, width, optimizer, initial, admit_after, rows_max))
        self._tables[number] = name
        return Table(inner, name)

    def change_rule(self, tensor: Tensor, optimizer: Optimizer) -> int:
        """Changes the optimizer of a tensor, from this worker's next contribution on. Returns that round. Only one worker needs
        to call it."""
        return self._change_rule(tensor, json.dumps(optimizer._json()))

    def resume(self, tensors: Iterable[Tensor]) -> int:
        """Where training is: the round that every worker has finished of these tensors, which are all that you contribute to; 0
        in a job that has just begun. Call it once, after declaring them and before you push: your next contribution is to the
        round after it, and your first pull brings the weights of that round. A script that a launcher starts again while rounds wait for
        it (`cluster.worker_loss = "wait"`) therefore continues with that step; with 0 it sets initial values. What a codec had kept of
        earlier gradients in the process that failed is lost."""
        return self._resume(list(tensors))

    def checkpoint(self, tensors: Iterable[Tensor], timeout: float = 300.0) -> str:
        """Has servers write a checkpoint of the round that you have finished of these tensors, which are all that you contribute
        to, and waits until it is complete, `timeout` seconds at most. Returns its name, for `checkpoint.restore`. Call it between
        rounds: when the operations of one were waited for, and before you push to the next. One worker is enough; training
        stands still meanwhile. The cluster has a place for them where `checkpoint.directory` is set."""
        return self._checkpoint(list(tensors), timeout)

    def empty(self, shape: Shape, dtype: Any = "float32") -> np.ndarray[Any, Any]:
        """Returns a new array of zeros in registered memory. The array and contiguous parts of it travel without a copy."""
        element = element_of(dtype)
        return self._empty(_shape(shape), element, numpy_of(element))

    def init(self, tensor: Tensor, array: Any) -> None:
        """Sets the initial value of a tensor, and waits until it is set. The value of rank 0 is used. Every worker must call
        it once, before the first round."""
        self.init_start(tensor, array).wait()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        else:
            self.fail(_why(error))

    def __repr__(self) -> str:
        return f"<gradwire.Client {self.rank} of {self.workers} workers, {self.servers} servers, {self.transport}>"


def connect(config: str | os.PathLike[str] | None = None, /, **settings: Any) -> Client:
    """Joins a cluster, and waits until all its members have joined.

    Settings come from, in increasing order of precedence: defaults, ./gradwire.toml (or `config`, or the file named by
    GRADWIRE_CONFIG), `DMLC_*` and `GRADWIRE_*` environment variables, and the arguments: `deadlines__operation_ms=5000`, or
    `**{"deadlines.operation_ms": 5000}`. Two have a short form: `scheduler="HOST:PORT"`, and
    `transport="shm" | "tcp" | "verbs"`, which turns the other drivers off. `gradwire.settings_reference()` lists all
    settings.
    """
    return Client(None if config is None else os.fspath(config), list(_given(settings)))


def wait_all(handles: Iterable[Handle | Pending]) -> list[Any]:
    """Waits for all handles, and returns their results. If one fails, raises the first error after all have ended."""
    results: list[Any] = []
    error: Error | None = None
    for handle in handles:
        try:
            results.append(handle.wait())
        except Error as cause:
            error = error or cause
    if error is not None:
        raise error
    return results


def _given(settings: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in settings.items():
        if value is None:
            continue
        if name == "scheduler":
            host, _, port = str(value).rpartition(":")
            yield "scheduler.host", host.strip("[]")
            yield "scheduler.port", port
        elif name == "transport":
            for driver in _DRIVERS:
                yield f"transport.{driver}", "require" if driver == value else "off"
            if value not in _DRIVERS:
                raise InputError(f"unknown transport {value!r}: use one of {', '.join(_DRIVERS)}", "setting")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield name.replace("__", "."), text


def _key_and_name(key: int | str) -> tuple[int, str]:
    if isinstance(key, str):
        return _native.key_of_name(key), key
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and 0 <= key < _KEYS:
        return int(key), ""
    raise InputError(f"invalid key {key!r}: use a name, or a number from 0 to 2**64 - 1", "key")


def _shape(shape: Shape) -> list[int]:
    lengths = [int(shape)] if isinstance(shape, (int, np.integer)) else [int(length) for length in shape]
    if any(length < 1 for length in lengths):
        raise InputError(f"invalid shape {shape!r}: every dimension must be at least 1", "wrong_shape")
    return lengths


def _spec(declaration: Declaration, key: int, name: str) -> tuple[str, list[int], Any, int]:
    element, shape = element_of(declaration.dtype), _shape(declaration.shape)
    elements = 1
    for length in shape:
        elements *= length
    if elements >= _KEYS:
        raise InputError(f"shape {declaration.shape!r} is too large", "wrong_shape")
    spec: dict[str, Any] = {
        "key": key,
        "name": name,
        "dtype": element,
        "elements": elements,
        "dynamic": declaration.dynamic,
        "optimizer": declaration.optimizer._json(),
        "mode": _mode(declaration.mode, declaration.dynamic),
        "backup_workers": declaration.backup_workers,
    }
    if declaration.codec is not None:
        spec["compression"] = declaration.codec._json()
    return json.dumps(spec), shape, numpy_of(element), declaration.priority


def _mode(mode: str | int | None, dynamic: bool) -> Any:
    if mode is None:
        # The cluster's; rounds of their own lengths there are in sync only.
        return "sync" if dynamic else None
    if mode in ("sync", "async"):
        return mode
    if isinstance(mode, int) and not isinstance(mode, bool) and mode >= 0:
        return {"bounded": mode}
    raise InputError(f'invalid mode {mode!r}: use "sync", "async", or a number of rounds', "mode")


def _why(error: BaseException | None) -> str:
    """What the other members are told of an exception. Of a long text the beginning and the end: TensorFlow puts the lines of the script
    before the reason."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 1024 else f"{text[:200]} ... {text[-800:]}"


# Clients that were not dropped when the interpreter ends: their threads must have ended before it does.
_live: weakref.WeakSet[Client] = weakref.WeakSet()
_pid = os.getpid()


def leave() -> None:
    """All clients of this process leave, or report the exception that ends it."""
    if os.getpid() != _pid:
        return
    # Where somebody types, an error that was seen is not the program's end.
    is_typed = hasattr(sys, "ps1") or sys.flags.interactive
    failed = None if is_typed else getattr(sys, "last_value", None)
    for client in list(_live):
        if failed is None:
            client.close()
        else:
            client.fail(_why(failed))


def _in_child() -> None:
    global _pid
    _pid = os.getpid()
    for client in list(_live):
        try:
            client._after_fork_in_child()
        except Error as error:
            warnings.warn(f"arrays of gradwire.Client.empty cannot be read in this forked process: {error}", stacklevel=2)
    # They are the parent's to leave with; those that this child makes are its own.
    _live.clear()


atexit.register(leave)
os.register_at_fork(after_in_child=_in_child)
