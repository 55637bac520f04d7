"""The client of `gradwire serve`: selects the server of a key, and sends requests to it. It must not know what the arrays are."""

from __future__ import annotations

import atexit
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from .. import _native
from ..client import Client
from ..errors import DeclareError, Error, InputError, OperationError
from ..optimizers import Own
from ._frames import APP, DONE, MARK, pack, unpack

#: Room for what a reply has beside an array.
_BESIDE = 1024
#: A server that is busy with earlier requests is waited for, in seconds.
_WITHIN_S = 1800.0
#: Bytes of gradients that have been sent and not been applied yet. More wait.
_PENDING_BYTES_MAX = 64 << 20


class Remote:
    """The parameters of one store at the servers."""

    def __init__(self, client: Client, store: str, framework: str) -> None:
        self._client, self._store, self._framework = client, store, framework
        # Pushes that have not been answered yet, of all keys, the oldest first, and their bytes.
        self._pending: deque[tuple[str, _native.Pending, int]] = deque()
        self._pending_bytes = 0
        try:
            client.declare(f"serve/{store}", (1,), optimizer=Own(MARK), mode="async")
        except DeclareError as error:
            raise InputError(
                "the servers run no Python optimizers: start them with `gradwire serve --updates FILE`, where FILE registers the optimizer's class",
                "optimizer",
            ) from error
        atexit.register(self._finish)

    def _server_of(self, key: str) -> int:
        return zlib.crc32(key.encode()) % int(self._client.servers)

    def _ask(self, server: int, do: str, words: dict[str, Any], arrays: Sequence[Any] = (), reply_bytes: int = 0) -> _native.Pending:
        head, body = pack((do, {"store": self._store, **words}), arrays)
        return self._client.call(APP, server, head, body, reply_bytes=reply_bytes, timeout=_WITHIN_S)

    @staticmethod
    def _answer(what: str, pending: _native.Pending) -> list[Any]:
        reply = pending.wait()
        if reply.head[:1] != DONE:
            raise OperationError(f"{what} failed: the server reports: {reply.body.decode(errors='replace')}", "updates")
        return unpack(reply.head[1:], reply.body)[1]

    def _everywhere(self, do: str, **words: Any) -> None:
        asked = [self._ask(server, do, words) for server in range(int(self._client.servers))]
        # All are waited for: another request would be answered before them otherwise.
        for pending in asked:
            pending.wait()
        for pending in asked:
            self._answer("the optimizer", pending)

    def check(self, name: str, attributes: dict[str, Any]) -> None:
        """Raises an error if a server cannot make this optimizer. Every worker calls it, so that all fail alike."""
        self._everywhere("check", framework=self._framework, name=name, attributes=attributes)

    def set_optimizer(self, name: str, attributes: dict[str, Any]) -> None:
        """Sets the optimizer of the store, by the name of its class; one worker is enough."""
        self._everywhere("optimizer", framework=self._framework, name=name, attributes=attributes)

    def change(self, attributes: dict[str, Any]) -> None:
        """Changes attributes of the optimizer; one worker is enough."""
        self._everywhere("change", attributes=attributes)

    def init(self, key: str, index: Any, value: Any, is_sparse: bool = False) -> None:
        """Adds a parameter, if the servers do not have it; one worker is enough."""
        words = {"framework": self._framework, "key": key, "index": index, "is_sparse": is_sparse}
        self._answer(f"init of {key}", self._ask(self._server_of(key), "init", words, [value]))

    def push(self, key: str, arrays: Sequence[Any]) -> None:
        """Sends a gradient, or row ids and their values, and does not wait. If the server cannot apply it, a later call raises the error."""
        nbytes = sum(array.nbytes for array in arrays)
        self._pending.append((f"push of {key}", self._ask(self._server_of(key), "push", {"key": key}, arrays), nbytes))
        self._pending_bytes += nbytes
        self._look()
        while self._pending_bytes > _PENDING_BYTES_MAX:
            self._take()

    def pull(self, key: str, nbytes: int, ids: Any = None) -> Any:
        """Returns the weights after this worker's pushes, or rows of them. `nbytes` is their size."""
        self._look()
        pending = self._ask_weights(key, nbytes, ids)
        weights = self._answer(f"pull of {key}", pending)[0]
        self._look()
        return weights

    def pull_all(self, keys: Sequence[tuple[str, int]]) -> Iterator[Any]:
        """Pulls several parameters, given with their sizes in bytes. All are requested before it waits for the first."""
        self._look()
        asked = [(f"pull of {key}", self._ask_weights(key, nbytes, None)) for key, nbytes in keys]
        for what, pending in asked:
            yield self._answer(what, pending)[0]
        self._look()

    def _ask_weights(self, key: str, nbytes: int, ids: Any) -> _native.Pending:
        do, arrays = ("pull", []) if ids is None else ("rows", [ids])
        return self._ask(self._server_of(key), do, {"key": key}, arrays, nbytes + _BESIDE)

    def settle(self) -> None:
        """Waits until all pushes are applied."""
        while self._pending:
            self._take()

    def _take(self) -> None:
        what, pending, nbytes = self._pending.popleft()
        self._pending_bytes -= nbytes
        self._answer(what, pending)

    def _look(self) -> None:
        """Raises the error of a push that has failed."""
        while self._pending and self._pending[0][1].done():
            self._take()

    def _finish(self) -> None:
        """The program ends: a push that has failed is no success of the job."""
        try:
            self.settle()
        except Error as error:
            print(f"gradwire: {error}", file=sys.stderr)
            if self._client.dead is None:
                self._client.fail(str(error))
