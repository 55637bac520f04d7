"""Arrays from one worker to another, by name: `Client.send` and `Client.recv`. The sender pushes the array into a tensor that belongs to
the two workers and the name, and the receiver pulls it. Two small messages go through the scheduler:

    sender                                       receiver
                         ◀── "ask" ──────────────  recv begins; nothing has arrived
      push; "sent" ──────────────────────────────▶ pull; compare the checksum
      send returns       ◀── answer to "sent" ───  recv returns
      answer to "ask" ───────────────────────────▶

`send` waits for the answer to "sent", and `recv` for "sent" or an error of "ask". So both waits end if the other worker has left or failed,
or after `deadlines.busy_ms`. A name has at most one array under way. If a `send` fails, its array may still be announced while the next one
overwrites it: then the checksum differs, and the receiver waits for the next announcement."""

from __future__ import annotations

import json
import operator
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ._native import Pending, Tensor
from .dtypes import ELEMENTS, element_of, numpy_of
from .errors import DeadlineError, Error, InputError, OperationError
from .optimizers import Assign

if TYPE_CHECKING:
    from .client import Client

Array = np.ndarray[Any, Any]
Answer = Callable[[bytes], None]
# A worker's rank and a name.
Route = tuple[int, str]
# None: any length of this dimension.
Shape = tuple[Union[int, None], ...]

_NAME_BYTES_MAX = 128
_RANK_MAX = 32
_BYTES_MIN, _BYTES_MAX = 4096, 1 << 48
# Nothing tells when a scheduler that was restarted is complete again.
_REPEAT_S = 0.2
# What `threading` can wait for.
_WAIT_S_MAX = 1e6


@dataclass
class _Arrived:
    """The contents of a message "sent"."""

    element: str
    shape: tuple[int, ...]
    checksum: int
    answer: Answer

    @property
    def nbytes(self) -> int:
        size: int = numpy_of(self.element).itemsize
        for length in self.shape:
            size *= length
        return size


class _Mail:
    """The messages that wait for `send` or `recv` of this worker. The message thread refers to this object, so it must not refer to the
    client."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived: dict[Route, _Arrived] = {}
        self._asks: dict[Route, Answer] = {}

    def hear(self, rank: int, body: bytes, answer: Answer) -> None:
        """Called by the message thread."""
        try:
            name, arrived = _parsed(body, answer)
        except (ValueError, KeyError, TypeError) as error:
            return answer(f"invalid message: {error}".encode())
        with self._changed:
            if arrived is None:
                # An earlier one of this name has ended: a worker waits once for a name.
                self._asks[rank, name] = answer
            else:
                self._arrived[rank, name] = arrived
                self._changed.notify_all()

    def wait(self, route: Route, ask: Pending, deadline: float) -> _Arrived | None:
        """Waits until an array is announced, or the ask has ended."""
        with self._changed:
            while True:
                arrived = self._arrived.pop(route, None)
                left = deadline - time.monotonic()
                if arrived is not None or ask.done() or left <= 0:
                    return arrived
                self._changed.wait(left)

    def wake(self, _: Any = None) -> None:
        with self._changed:
            self._changed.notify_all()

    def end_ask(self, route: Route) -> None:
        """What was asked for has been received, or its `send` has failed."""
        with self._changed:
            answer = self._asks.pop(route, None)
        if answer is not None:
            answer(b"")


@dataclass
class _Place:
    """A tensor, and a buffer for it."""

    tensor: Tensor
    buffer: Array

    @property
    def bytes(self) -> Array:
        return self.buffer.view(np.uint8)


@dataclass
class _End:
    """One end of a route: its places, by their length in bytes."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    places: dict[int, _Place] = field(default_factory=dict)


class Transfers:
    """The arrays that a client sends and receives."""

    def __init__(self, client: Client) -> None:
        self._mail = _Mail()
        self._outgoing: dict[Route, _End] = {}
        self._incoming: dict[Route, _End] = {}
        client._listen(self._mail.hear)

    def send(self, client: Client, array: Array, to: int, name: str) -> None:
        what = f"send of {name!r} to worker {to}"
        route = _checked(client, what, to, name)
        with _told_as(what):
            element = element_of(array.dtype)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
        end = self._outgoing.setdefault(route, _End())
        with end.lock, _told_as(what):
            try:
                if array.nbytes:
                    place = _place(client, end, (client.rank, *route), array.nbytes)
                    place.bytes[: array.nbytes] = _bytes_of(array)
                    client.push(place.tensor, place.buffer).wait()
                checksum = zlib.crc32(_bytes_of(array).data)
                said = {"name": name, "dtype": element, "shape": array.shape, "checksum": checksum}
                refused = _answered(client, route, said)
            finally:
                self._mail.end_ask(route)
        if refused:
            raise InputError(f"{what}: worker {to} refused it: {refused.decode(errors='replace')}", "refused")

    def recv(self, client: Client, source: int, name: str, dtype: Any, shape: Shape | None) -> Array:
        what = f"recv of {name!r} from worker {source}"
        route = _checked(client, what, source, name)
        with _told_as(what):
            element = None if dtype is None else element_of(dtype)
        end = self._incoming.setdefault(route, _End())
        with end.lock, _told_as(what):
            deadline = time.monotonic() + min(client._busy_s, _WAIT_S_MAX)
            while True:
                arrived = self._next(client, route, deadline)
                try:
                    _check_fit(arrived, element, shape)
                    got = _fetched(client, end, route, arrived)
                except BaseException as error:
                    arrived.answer(f"{what}: {error}".encode()[:1000])
                    raise
                if got is not None:
                    arrived.answer(b"")
                    return got

    def _next(self, client: Client, route: Route, deadline: float) -> _Arrived:
        body = json.dumps({"name": route[1]}).encode()
        while time.monotonic() < deadline:
            ask = client._post(route[0], body)
            ask.add_done_callback(self._mail.wake)
            arrived = self._mail.wait(route, ask, deadline)
            if arrived is not None:
                return arrived
            if ask.done():
                _check_ask(client, ask)
        raise DeadlineError(
            f"worker {route[0]} has sent no array of this name within {client._busy_s:g} s: check that both workers use the same name, or raise "
            "deadlines.busy_ms",
            "not_sent",
        )


@contextmanager
def _told_as(what: str) -> Iterator[None]:
    """Errors begin with what was called."""
    try:
        yield
    except Error as error:
        raise type(error)(f"{what}: {error}", error.code, error.exit_code) from error


def _parsed(body: bytes, answer: Answer) -> tuple[str, _Arrived | None]:
    """The name in a message, and what has arrived. Raises an error for anything that `Transfers` does not send."""
    said = json.loads(body)
    name = said["name"]
    if not isinstance(name, str):
        raise TypeError("the name is not a string")
    if "dtype" not in said:
        return name, None
    shape = tuple(operator.index(length) for length in said["shape"])
    if said["dtype"] not in ELEMENTS.values() or len(shape) > _RANK_MAX or any(length < 0 for length in shape):
        raise ValueError("unknown dtype or shape")
    arrived = _Arrived(said["dtype"], shape, operator.index(said["checksum"]), answer)
    if arrived.nbytes > _BYTES_MAX:
        raise ValueError("the array is too large")
    return name, arrived


def _checked(client: Client, what: str, rank: int, name: str) -> Route:
    if isinstance(rank, bool) or not 0 <= operator.index(rank) < client.workers:
        raise InputError(f"{what}: there is no such worker: pass a rank from 0 to {client.workers - 1}", "rank")
    if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= _NAME_BYTES_MAX:
        raise InputError(f"{what}: the name must be a string of 1 to {_NAME_BYTES_MAX} bytes", "name")
    return operator.index(rank), name


def _check_fit(arrived: _Arrived, element: str | None, shape: Shape | None) -> None:
    fits = shape is None or len(shape) == len(arrived.shape) and all(one in (None, of) for one, of in zip(shape, arrived.shape))
    if element not in (None, arrived.element) or not fits:
        raise InputError(
            f"the array has dtype {numpy_of(arrived.element)} and shape {arrived.shape}, but recv expects dtype "
            f"{'of any kind' if element is None else numpy_of(element)} and shape {'of any kind' if shape is None else shape}",
            "wrong_shape",
        )


def _answered(client: Client, route: Route, said: dict[str, Any]) -> bytes:
    """Announces an array, and returns the answer of the receiver. A restarted scheduler knows nothing of messages: they are repeated."""
    body, deadline = json.dumps(said).encode(), time.monotonic() + client._busy_s
    while True:
        try:
            answer: bytes = client._post(route[0], body).wait()
            return answer
        except DeadlineError as error:
            text = f"worker {route[0]} did not call recv within {client._busy_s:g} s: check that both workers use the same name, or raise deadlines.busy_ms"
            raise DeadlineError(text, "not_received") from error
        except OperationError as error:
            _check_passes(client, error)
            if time.monotonic() >= deadline:
                raise


def _check_ask(client: Client, ask: Pending) -> None:
    """Raises the error of an ask that has ended, unless the ask can be repeated."""
    try:
        ask.wait()
    except OperationError as error:
        # At its deadline, that of the caller is over, too.
        if not isinstance(error, DeadlineError):
            _check_passes(client, error)


def _check_passes(client: Client, error: OperationError) -> None:
    """Raises an error of a message, unless the scheduler was restarted. Then the message can be repeated after a while."""
    client._check_alive()
    if error.code != "not_now":
        raise error
    time.sleep(_REPEAT_S)


def _fetched(client: Client, end: _End, route: Route, arrived: _Arrived) -> Array | None:
    """The array, or None if another one has been pushed since it was announced."""
    if not arrived.nbytes:
        return np.empty(arrived.shape, numpy_of(arrived.element))
    place = _place(client, end, (route[0], client.rank, route[1]), arrived.nbytes)
    client.pull(place.tensor, out=place.buffer).wait()
    received = place.bytes[: arrived.nbytes]
    if zlib.crc32(received.data) != arrived.checksum:
        return None
    got: Array = np.empty(arrived.shape, numpy_of(arrived.element))
    _bytes_of(got)[:] = received
    return got


def _place(client: Client, end: _End, route: tuple[int, int, str], nbytes: int) -> _Place:
    """The place for arrays of this length. Lengths are rounded up by at most an eighth."""
    step = max(_BYTES_MIN, 1 << max(0, nbytes.bit_length() - 4))
    room = -(-nbytes // step) * step
    place = end.places.get(room)
    if place is None:
        source, to, name = route
        tensor = client.declare(f"gradwire.sent.{source}.{to}.{room}.{name}", room // 4, "int32", Assign(), mode="async")
        if source == client.rank:
            # An earlier process of this worker may have pushed: servers would take the first pushes for repetitions of those.
            client._resume([tensor])
        place = end.places[room] = _Place(tensor, client.empty(room // 4, "int32"))
    return place


def _bytes_of(array: Array) -> Array:
    """The bytes of a contiguous array."""
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat
