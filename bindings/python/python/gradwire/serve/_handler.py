"""The handler of a server of `gradwire serve`: stores of parameters, each with an optimizer. Workers' requests create and change them. It
must not know how an optimizer computes."""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Protocol

from ..errors import Error, InputError
from . import _kinds
from ._frames import DONE, FAILED, pack, unpack

_TEXT_MAX = 4000
_FORMAT = 1
_MAGIC = b"gradwire state\n"
#: After so many failures, their tracebacks are not printed any more.
_TRACEBACKS_MAX = 10


class Store(Protocol):
    """The parameters of one store, with a framework's optimizer."""

    def make(self, kind: type[Any], attributes: dict[str, Any]) -> Any:
        """Returns an optimizer of this class with these attributes, or raises an error."""

    def set_optimizer(self, kind: type[Any], attributes: dict[str, Any]) -> None:
        """Makes an optimizer, which updates the parameters from now on."""

    def change(self, attributes: dict[str, Any]) -> None:
        """Sets attributes of the optimizer that it has."""

    def init(self, key: str, index: Any, value: Any, is_sparse: bool) -> None:
        """Adds a parameter. If there is one of this key, checks that it has the same shape, and keeps it."""

    def push(self, key: str, arrays: list[Any]) -> None:
        """Applies a gradient: an array, or rows and their values."""

    def pull(self, key: str) -> Any:
        """The weights, as an array of numpy."""

    def pull_rows(self, key: str, ids: Any) -> Any:
        """Rows of the weights."""

    def state(self) -> tuple[Any, list[Any]]:
        """Everything, as a value and arrays for `pack`."""

    def restore(self, value: Any, arrays: list[Any]) -> None:
        """What `state` returned."""


def _made(framework: str) -> Store:
    """Returns an empty store. The framework has been imported by the operator's file, if that registers a class of it."""
    if framework not in _kinds.frameworks():
        raise InputError(f"these servers have no optimizer of {framework!r}: register one in the file of `gradwire serve --updates`", "request")
    if framework == "mxnet":
        from ._mxnet import MxnetStore

        return MxnetStore()
    from ._torch import TorchStore

    return TorchStore()


class Updates:
    """The handler's methods are called on one thread of the server, one request at a time."""

    def __init__(self, folder: Path | None = None, every_s: float = 60.0) -> None:
        self._folder, self._every_s = folder, every_s
        self._path: Path | None = None
        self._servers = 0
        self._due = time.monotonic() + every_s
        self._has_begun = False
        # A process that replaces a failed one: before it has repeated the requests of its journal, its state is older than the file.
        self._is_behind = False
        self._failures = 0
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        # Of each store: the framework, the name of the optimizer, and its attributes, as workers have sent them last.
        self._made_of: dict[str, list[Any]] = {}
        self._does: dict[str, Callable[..., list[Any]]] = {
            "check": self._check,
            "optimizer": self._optimizer,
            "change": self._change,
            "init": self._init,
            "push": self._push,
            "pull": self._pull,
            "rows": self._rows,
        }

    def joined(self, rank: int, servers: int, is_recovery: bool) -> None:
        """The scheduler has assigned the rank. A file is loaded later, on the handler's thread, because heartbeats wait for this."""
        self._servers, self._is_behind = servers, is_recovery
        if self._folder is not None:
            self._path = self._folder / f"updates-{rank}.state"

    def _begin(self) -> None:
        """Loads the state of an earlier job. A process that replaces a failed one continues from the journal instead, which is newer."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._path is None or self._folder is None or self._is_behind:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._load(_unsealed(self._path.read_bytes()))
                print(f"gradwire serve: continues from {self._path}", file=sys.stderr, flush=True)
            elif others := sorted(self._folder.glob("updates-*.state")):
                raise InputError(
                    f"{self._folder} has states of other servers ({others[0].name}), and none of this rank: use a directory that all servers "
                    "share, or give each server its rank (node.rank)",
                    "state",
                )
            else:
                print(f"gradwire serve: no state in {self._folder}: starts with the parameters of the workers", file=sys.stderr, flush=True)
        # A damaged file may raise anything, also in an optimizer. A server without its state must not take part: it would write another one.
        except Exception as error:  # pylint: disable=broad-exception-caught
            print(f"gradwire serve: cannot continue from {self._path}: {_told(error)}", file=sys.stderr, flush=True)
            os._exit(78)

    def call(self, rank: int, head: bytes, body: bytes, is_repeated: bool) -> tuple[bytes, Any]:
        """Handles a request. Returns head and body of the reply; a failure is a reply, too."""
        with self._lock:
            self._begin()
            self._is_behind = self._is_behind and is_repeated
            try:
                (do, words), arrays = unpack(head, body)
                if do not in self._does or not isinstance(words, dict):
                    raise InputError(f"there is no request {do!r}", "request")
                answer, weights = pack(None, self._does[do](arrays=arrays, **words))
            # The operator's optimizer may raise any exception, and SystemExit would end this thread only.
            except BaseException as error:  # pylint: disable=broad-exception-caught
                if not isinstance(error, Error):
                    self._failures += 1
                    if self._failures <= _TRACEBACKS_MAX:
                        traceback.print_exc()
                return FAILED, _told(error)[:_TEXT_MAX].encode()
            if time.monotonic() >= self._due:
                self._write()
            return DONE + answer, weights

    def end(self) -> None:
        """The job has ended: writes the file for the last time, unless a request is still being handled."""
        if self._lock.acquire(blocking=False):
            self._write()
            self._lock.release()

    def _write(self) -> None:
        self._due = time.monotonic() + self._every_s
        if self._path is None or self._is_behind or not self._has_begun:
            return
        part = self._path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                file.writelines(_sealed(self._state()))
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._path)
        except Exception as error:  # pylint: disable=broad-exception-caught
            print(f"gradwire serve: cannot write {self._path}: {_told(error)}; the file before stays", file=sys.stderr, flush=True)

    def save(self) -> bytes:
        """The state, for the journal."""
        with self._lock:
            self._begin()
            return b"".join(self._state())

    def _state(self) -> list[Any]:
        stores, arrays = [], []
        for name, store in self._stores.items():
            value, its = store.state()
            stores.append([name, self._made_of[name], value, len(its)])
            arrays += its
        head, body = pack([_FORMAT, self._servers, stores], arrays)
        return [len(head).to_bytes(2, "little"), head, memoryview(body)]

    def load(self, state: bytes) -> None:
        """Continues from the state of a failed process, which `save` has returned there."""
        with self._lock:
            self._has_begun = True
            self._load(state)

    def _load(self, state: bytes) -> None:
        at = 2 + int.from_bytes(state[:2], "little")
        (form, servers, stores), arrays = unpack(state[2:at], state[at:])
        if form != _FORMAT:
            raise InputError(f"the state has format {form}, and this release reads {_FORMAT}", "state")
        if servers != self._servers:
            raise InputError(
                f"the state is of a job with {servers} servers, which had other keys than one of {self._servers}: start as many", "state"
            )
        self._stores, self._made_of = {}, {}
        for name, made_of, value, count in stores:
            framework, kind, attributes = made_of
            store = _made(framework)
            if kind is not None:
                store.set_optimizer(_kinds.find(framework, kind), copy.deepcopy(attributes))
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

    def _check(self, arrays: list[Any], store: str, framework: str, name: str, attributes: dict[str, Any]) -> list[Any]:
        """Raises the error that `optimizer` would raise."""
        _made(framework).make(_kinds.find(framework, name), attributes)
        return []

    def _optimizer(self, arrays: list[Any], store: str, framework: str, name: str, attributes: dict[str, Any]) -> list[Any]:
        kind, found, made_of = _kinds.find(framework, name), self._new(store, framework), self._made_of[store]
        # What the optimizer does with them must not change what was sent.
        sent = copy.deepcopy(attributes)
        if made_of[1] == name:
            # A restarted worker, or a job that continues. If a new optimizer were made, its momentum would be lost.
            found.change({one: value for one, value in attributes.items() if made_of[2].get(one, ...) != value})
        else:
            found.set_optimizer(kind, attributes)
        self._made_of[store] = [framework, name, sent]
        return []

    def _change(self, arrays: list[Any], store: str, attributes: dict[str, Any]) -> list[Any]:
        sent = copy.deepcopy(attributes)
        self._store(store).change(attributes)
        now = self._made_of[store][2]
        for name, value in sent.items():
            # Of torch, some options of a parameter.
            now[name] = {**now[name], **value} if isinstance(value, dict) and isinstance(now.get(name), dict) else value
        return []

    def _init(self, arrays: list[Any], store: str, framework: str, key: str, index: Any, is_sparse: bool) -> list[Any]:
        self._new(store, framework).init(key, index, arrays[0], is_sparse)
        return []

    def _push(self, arrays: list[Any], store: str, key: str) -> list[Any]:
        self._store(store).push(key, arrays)
        return []

    def _pull(self, arrays: list[Any], store: str, key: str) -> list[Any]:
        return [self._store(store).pull(key)]

    def _rows(self, arrays: list[Any], store: str, key: str) -> list[Any]:
        return [self._store(store).pull_rows(key, arrays[0])]


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"


def _sealed(parts: list[Any]) -> list[Any]:
    """The contents of a file, with a checksum."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [_MAGIC, digest.digest(), *parts]


def _unsealed(data: bytes) -> bytes:
    at = len(_MAGIC) + hashlib.sha256().digest_size
    state = data[at:]
    if not data.startswith(_MAGIC) or hashlib.sha256(state).digest() != data[len(_MAGIC) : at]:
        raise InputError("the file is damaged, or is no state of gradwire serve", "state")
    return state
