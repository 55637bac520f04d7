"""The handler of a server of `gradwire serve`: stores of parameters, each with an optimizer. Workers' requests create and change them. It
must not know how an optimizer computes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Callable, Protocol

from ..errors import Error, InputError
from . import _kinds
from ._frames import DONE, FAILED, pack, unpack

_TEXT_MAX = 4000
_FORMAT = 1


class Store(Protocol):
    """The parameters of one store, with a framework's optimizer."""

    def set_optimizer(self, kind: type[Any], attributes: dict[str, Any]) -> None:
        """Makes an optimizer of this class, with these attributes."""

    def change(self, attributes: dict[str, Any]) -> None:
        """Sets attributes of the optimizer that it has."""

    def init(self, key: str, index: Any, value: Any, is_sparse: bool) -> None:
        """Adds a parameter."""

    def push(self, key: str, arrays: list[Any]) -> None:
        """Applies a gradient: an array, or rows and their values."""

    def pull(self, key: str) -> Any:
        """The weights, as an array of numpy."""

    def pull_rows(self, key: str, ids: Any) -> Any:
        """Rows of the weights."""

    def keys(self) -> list[str]:
        """The parameters that it has."""

    def state(self) -> tuple[Any, list[Any]]:
        """Everything, as a value and arrays for `pack`."""

    def restore(self, value: Any, arrays: list[Any]) -> None:
        """What `state` returned."""


def _made(framework: str) -> Store:
    """Returns an empty store. The framework is imported when a worker first names it."""
    if framework == "mxnet":
        from ._mxnet import MxnetStore

        return MxnetStore()
    if framework == "torch":
        from ._torch import TorchStore

        return TorchStore()
    raise InputError(f"there is no framework {framework!r}", "request")


class Updates:
    """The handler's methods are called on one thread of the server, one request at a time."""

    def __init__(self, folder: Path | None = None, every_s: float = 60.0) -> None:
        self._folder, self._every_s = folder, every_s
        self._path: Path | None = None
        self._servers = 0
        self._due = time.monotonic() + every_s
        self._stores: dict[str, Store] = {}
        # Of each store: the framework, the name of the optimizer, and the attributes with which it was made.
        self._made_of: dict[str, list[Any]] = {}
        self._does: dict[str, Callable[..., list[Any]]] = {
            "known": self._known,
            "optimizer": self._optimizer,
            "change": self._change,
            "init": self._init,
            "push": self._push,
            "pull": self._pull,
            "rows": self._rows,
        }

    def joined(self, rank: int, servers: int, is_recovery: bool) -> None:
        """The scheduler has assigned the rank. Loads the state of an earlier job. A process that replaces a failed one does not: it continues
        from the journal of the failed one, which is newer than the file."""
        self._servers = servers
        if self._folder is None:
            return
        self._path = self._folder / f"updates-{rank}.state"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not is_recovery:
                self.load(self._path.read_bytes())
        except (OSError, Error) as error:
            raise InputError(f"cannot continue from {self._path}: {error}", "state") from error

    def call(self, rank: int, head: bytes, body: bytes) -> tuple[bytes, Any]:
        """Handles a request. Returns head and body of the reply; a failure is a reply, too."""
        try:
            (do, words), arrays = unpack(head, body)
            if do not in self._does or not isinstance(words, dict):
                raise InputError(f"there is no request {do!r}", "request")
            answer, weights = pack(None, self._does[do](arrays=arrays, **words))
        # The operator's optimizer may raise any exception.
        except Exception as error:  # pylint: disable=broad-exception-caught
            name = "" if isinstance(error, Error) else f"{type(error).__name__}: "
            return FAILED, f"{name}{error}"[:_TEXT_MAX].encode()
        if self._path is not None and time.monotonic() >= self._due:
            self.write()
        return DONE + answer, weights

    def write(self) -> None:
        """Writes the state to its file, atomically."""
        if self._path is None:
            return
        part = self._path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.write(self.save())
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except OSError as error:
            print(f"gradwire.serve: cannot write {self._path}: {error}; the file before stays", flush=True)
        self._due = time.monotonic() + self._every_s

    def save(self) -> bytes:
        """The state, for `load`."""
        stores, arrays = [], []
        for name, store in self._stores.items():
            value, its = store.state()
            stores.append([name, self._made_of[name], value, len(its)])
            arrays += its
        head, body = pack([_FORMAT, self._servers, stores], arrays)
        return len(head).to_bytes(2, "little") + head + bytes(body)

    def load(self, state: bytes) -> None:
        """Continues from the state that `save` returned in another process."""
        at = 2 + int.from_bytes(state[:2], "little")
        (form, servers, stores), arrays = unpack(state[2:at], state[at:])
        if form != _FORMAT:
            raise InputError(f"the state has format {form}, and this release reads {_FORMAT}", "state")
        if servers not in (0, self._servers) and self._servers:
            raise InputError(
                f"the state is of a job with {servers} servers, which had other keys than one of {self._servers}: start as many", "state"
            )
        self._stores, self._made_of = {}, {}
        for name, made_of, value, count in stores:
            framework, kind, attributes = made_of
            store = _made(framework)
            if kind is not None:
                store.set_optimizer(_kinds.find(framework, kind), attributes)
            store.restore(value, arrays[:count])
            arrays = arrays[count:]
            self._stores[name], self._made_of[name] = store, made_of

    def _store(self, name: str) -> Store:
        store = self._stores.get(name)
        if store is None:
            raise InputError(f"there is no store {name}: init comes first", "request")
        return store

    def _new(self, name: str, framework: str) -> Store:
        if name not in self._stores:
            self._stores[name] = _made(framework)
            self._made_of[name] = [framework, None, {}]
        return self._stores[name]

    def _known(self, arrays: list[Any], store: str, framework: str, name: str) -> list[Any]:
        _kinds.find(framework, name)
        return []

    def _optimizer(self, arrays: list[Any], store: str, framework: str, name: str, attributes: dict[str, Any]) -> list[Any]:
        kind, found = _kinds.find(framework, name), self._new(store, framework)
        made_of = [framework, name, attributes]
        # A restarted worker repeats the request. If a new optimizer were made, its momentum would be lost.
        if self._made_of[store] != made_of:
            found.set_optimizer(kind, attributes)
            self._made_of[store] = made_of
        return []

    def _change(self, arrays: list[Any], store: str, attributes: dict[str, Any]) -> list[Any]:
        self._store(store).change(attributes)
        return []

    def _init(self, arrays: list[Any], store: str, framework: str, key: str, index: Any, is_sparse: bool) -> list[Any]:
        found = self._new(store, framework)
        # A job that continues from a state, or a restarted worker: the trained weights stay.
        if key not in found.keys():
            found.init(key, index, arrays[0], is_sparse)
        return []

    def _push(self, arrays: list[Any], store: str, key: str) -> list[Any]:
        self._store(store).push(key, arrays)
        return []

    def _pull(self, arrays: list[Any], store: str, key: str) -> list[Any]:
        return [self._store(store).pull(key)]

    def _rows(self, arrays: list[Any], store: str, key: str) -> list[Any]:
        return [self._store(store).pull_rows(key, arrays[0])]
