"""Arrays from one worker to another, by name: `Client.send` and `Client.recv`. An array travels as a tensor of its own, which the sender
pushes and the receiver pulls; its bits arrive as they are. Two small messages go by way of the scheduler:

    sender                               receiver
      push; "sent" ─────────────────────▶ pull
      the next one of this name ◀──────── answers "sent"
      answers "asked" ──────────────────▶ looks again, if nothing had come and it had "asked"

Each wait is for the answer to a message, so it ends when the other worker is gone, or has not answered within `deadlines.busy_ms`."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ._native import Pending, Tensor
from .dtypes import element_of, numpy_of
from .errors import DeadlineError, Error, InputError, MemberDiedError, OperationError
from .optimizers import Assign

if TYPE_CHECKING:
    from .client import Client

Array = np.ndarray[Any, Any]
Answer = Callable[[bytes], None]
# A worker's rank and a name.
Route = tuple[int, str]
# None: of any length.
Shape = tuple[Union[int, None], ...]

# The number of these messages: "gwtr" in ASCII.
_APP = 0x67777472


@dataclass
class _Arrived:
    """What a message "sent" says."""

    dtype: str
    shape: tuple[int, ...]
    answer: Answer


class _Mail:
    """What has been sent to this worker and not received yet, and who asks for more. It belongs to the thread of messages as well, so
    it must not keep the client alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: defaultdict[Route, deque[_Arrived]] = defaultdict(deque)
        self._sent: dict[Route, Pending] = {}
        self._asked: defaultdict[Route, list[Answer]] = defaultdict(list)

    def hear(self, rank: int, body: bytes, answer: Answer) -> None:
        """A message. It is answered later."""
        said = json.loads(body)
        route = (rank, said["name"])
        with self._lock:
            if "dtype" in said:
                self._arrived[route].append(_Arrived(said["dtype"], tuple(said["shape"]), answer))
                return
            sent = self._sent.get(route)
            if sent is None or sent.done():
                self._asked[route].append(answer)
                return
        # It is under way to the worker that asks.
        answer(b"")

    def take(self, route: Route) -> _Arrived | None:
        """What came first, if anything."""
        with self._lock:
            arrived = self._arrived[route]
            return arrived.popleft() if arrived else None

    def wait_received(self, what: str, route: Route) -> None:
        """Waits until what was sent last has been received. An error is raised once."""
        with self._lock:
            pending = self._sent.get(route)
        if pending is not None:
            try:
                # Until then whoever asks is told that it is under way.
                _wait_received(what, pending)
            finally:
                with self._lock:
                    del self._sent[route]

    def sent(self, route: Route, pending: Pending) -> None:
        """It is on its way, before the answers to those who asked for it."""
        with self._lock:
            self._sent[route] = pending
            asked = self._asked.pop(route, [])
        for answer in asked:
            answer(b"")


@dataclass
class _Place:
    """Where the arrays of a route lie at the servers and here. A route has one at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    tensor: Tensor | None = None
    buffer: Array | None = None


class Transfers:
    """The arrays that a client sends and receives."""

    def __init__(self, client: Client) -> None:
        self._mail = _Mail()
        self._outgoing: defaultdict[Route, _Place] = defaultdict(_Place)
        self._incoming: defaultdict[Route, _Place] = defaultdict(_Place)
        client._listen(_APP, self._mail.hear)

    def send(self, client: Client, array: Array, to: int, name: str) -> None:
        what = f"send of {name!r} to worker {to}"
        _check(client, what, to, name)
        element, route = element_of(array.dtype), (to, name)
        said = json.dumps({"name": name, "dtype": element, "shape": array.shape}).encode()
        place = self._outgoing[route]
        with place.lock:
            self._mail.wait_received(what, route)
            if array.nbytes:
                tensor, buffer = _placed(client, place, (client.rank, to, name), array.nbytes)
                np.copyto(buffer, words_of(np.ascontiguousarray(array)))
                client.push(tensor, buffer).wait()
            self._mail.sent(route, client._post(to, _APP, said))

    def recv(self, client: Client, source: int, name: str, dtype: Any, shape: Shape | None) -> Array:
        what = f"recv of {name!r} from worker {source}"
        _check(client, what, source, name)
        arrived = self._next(client, what, (source, name))
        try:
            got = self._fetched(client, what, (source, name), arrived, (dtype, shape))
        except Error as error:
            arrived.answer(str(error).encode())
            raise
        arrived.answer(b"")
        return got

    def _next(self, client: Client, what: str, route: Route) -> _Arrived:
        while (arrived := self._mail.take(route)) is None:
            asks = json.dumps({"name": route[1]}).encode()
            try:
                client._post(route[0], _APP, asks).wait()
            except DeadlineError as error:
                text = f"{what}: it has sent nothing of this name within deadlines.busy_ms; check that both workers use the same name"
                raise DeadlineError(text, error.code, error.exit_code) from error
            except MemberDiedError as error:
                raise MemberDiedError(f"{what}: {error}", error.code, error.exit_code) from error
        return arrived

    def _fetched(
        self, client: Client, what: str, route: Route, arrived: _Arrived, wanted: tuple[Any, Shape | None]
    ) -> Array:
        dtype, shape = wanted
        if dtype is not None and element_of(dtype) != arrived.dtype or not _fits(arrived.shape, shape):
            wants = f"dtype {element_of(dtype) if dtype else 'any'}, shape {'any' if shape is None else shape}"
            raise InputError(f"{what}: it has dtype {arrived.dtype}, shape {arrived.shape}, and not {wants}", "wrong_shape")
        got: Array = np.empty(arrived.shape, numpy_of(arrived.dtype))
        place = self._incoming[route]
        with place.lock:
            if got.nbytes:
                tensor, buffer = _placed(client, place, (route[0], client.rank, route[1]), got.nbytes)
                client.pull(tensor, out=buffer).wait()
                np.copyto(words_of(got), buffer)
        return got


def _check(client: Client, what: str, rank: int, name: str) -> None:
    if not 0 <= rank < client.workers:
        raise InputError(f"{what}: there is no such worker: pass a rank from 0 to {client.workers - 1}", "rank")
    if not isinstance(name, str) or not name:
        raise InputError(f"{what}: the name must be a string that is not empty", "name")


def _fits(shape: tuple[int, ...], wanted: Shape | None) -> bool:
    if wanted is None:
        return True
    return len(shape) == len(wanted) and all(length in (None, of) for length, of in zip(wanted, shape))


def _wait_received(what: str, pending: Pending) -> None:
    try:
        refused: bytes = pending.wait()
    except OperationError as error:
        text = f"{what}: the one before was not received: {error}"
        raise type(error)(text, error.code, error.exit_code) from error
    if refused:
        raise InputError(f"{what}: the one before was refused there: {refused.decode()}", "refused")


def _placed(client: Client, place: _Place, route: tuple[int, int, str], nbytes: int) -> tuple[Tensor, Array]:
    """The tensor of arrays of this length, and the buffer for it."""
    if place.tensor is None or place.buffer is None or place.buffer.nbytes != nbytes:
        dtype, size = ("int32", nbytes // 4) if nbytes % 4 == 0 else ("uint8", nbytes)
        source, to, name = route
        place.tensor = client.declare(f"gradwire.sent.{source}.{to}.{nbytes}.{name}", size, dtype, Assign(), mode="async")
        place.buffer = client.empty(size, dtype)
    return place.tensor, place.buffer


def words_of(array: Array) -> Array:
    """The bits of a contiguous array as integers."""
    flat: Array = array.reshape(-1).view(np.uint8)
    words: Array = flat.view(np.int32) if flat.size % 4 == 0 else flat
    return words
