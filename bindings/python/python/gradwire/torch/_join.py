"""Uneven inputs: a worker without data takes part in the rounds of the others until no worker has data. It contributes nothing, and
means are over those that contribute. Wrappers know their rounds; this knows when to take part, and what follows."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig

from ..client import Client
from ._process import client_or_default
from ._roll import Absence
from ._state import state_of

__all__ = ["Join", "Uneven", "join"]

_collecting = threading.Lock()


class Uneven(Joinable):
    """What a wrapper has whose rounds continue while some workers have no more data. It works with torch's context `Join` as well,
    which needs a process group of torch's."""

    def enroll(self, client: Client, absence: Absence | None, *others: Callable[[], bool]) -> None:
        """The last thing that a constructor does. All workers construct wrappers in the same order. `absence` and `others` take part in a
        round after the wrapper is gone; without `absence` it has no rounds."""
        self._client = client
        # Joinable's constructor would call that of the wrapper's other base.
        self._join_config = _JoinConfig.construct_disabled_join_config()
        if absence is not None:
            known = state_of(client).uneven
            # That of a wrapper with the same names, whose hooks were removed.
            known.pop(absence.prefix, None)
            known[absence.prefix] = Enrolled(weakref.ref(self), [absence.take_part, *others])

    def withdraw(self) -> None:
        """Its rounds have ended."""
        for one in state_of(self._client).uneven.values():
            if one.wrapper() is self:
                one.wrapper = lambda: None

    def shadows(self) -> list[Callable[[], bool]]:
        """Functions that take part in one round without contributing to it, and return whether any worker has contributed."""
        raise NotImplementedError

    @property
    def contributors(self) -> Sequence[int]:
        """The ranks whose gradients are in the last means: all workers, but those that have joined (`join`)."""
        raise NotImplementedError

    def align(self, root: int) -> None:
        """Copies what training changes from a worker that took the last step to all workers, which are all present again."""
        raise NotImplementedError

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """For torch's `Join`."""
        return _Hook(self._client)

    @property
    def join_device(self) -> torch.device:
        """For torch's `Join`: where it counts workers."""
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        """For torch's `Join`: the default group."""
        return None


def join(*, client: Client | None = None) -> int:
    """Every worker calls it when its data ends, which may be before that of others. Until all have called it, gradients of
    DistributedOptimizer and DistributedDataParallel are averaged over the workers that have not. Returns the rank of a worker that
    took the last step. Where workers took different numbers of steps, its parameters, buffers (of a DistributedDataParallel) and
    optimizer state (of a DistributedOptimizer) are copied to all workers. If a worker has dropped a wrapper that others still have, all
    workers get an InputError. Mode "async" needs no `join`."""
    client = client_or_default(client)
    _begin(client)
    return _end(client)


class _Hook(JoinHook):
    def __init__(self, client: Client) -> None:
        self._client, self._state = client, state_of(client)
        self._state.has_joined = False

    def main_hook(self) -> None:
        _begin(self._client)

    def post_hook(self, is_last_joiner: bool) -> None:
        # Of several wrappers in one context, the first joins for all.
        if not self._state.has_joined:
            self._state.has_joined = True
            join(client=self._client)


@dataclass
class Enrolled:
    """A wrapper while there is one, and then what takes part in a round that finds out whether it is gone on all workers."""

    wrapper: Callable[[], Uneven | None]
    absences: list[Callable[[], bool]]


class Joining(NamedTuple):
    """A worker that has joined, and waits for the others."""

    wrappers: list[Uneven]
    # The prefixes of wrappers that are gone.
    gone: list[str]
    followers: _Followers


def _begin(client: Client) -> None:
    state = state_of(client)
    if state.joining is not None:
        return
    # A wrapper in a cycle would be gone on some workers only. While another thread collects, `collect` returns at once.
    with _collecting:
        gc.collect()
    found = [(prefix, one.wrapper(), one.absences) for prefix, one in state.uneven.items()]
    followed = [follow for _, one, absences in found for follow in (absences if one is None else one.shadows())]
    wrappers, gone = [one for _, one, _ in found if one is not None], [prefix for prefix, one, _ in found if one is None]
    state.joining = Joining(wrappers, gone, _Followers(list(dict.fromkeys(followed))))


def _end(client: Client) -> int:
    state = state_of(client)
    joining, state.joining = state.joining, None
    assert joining is not None
    joining.followers.wait()
    for prefix in joining.gone:
        # On all workers, as there was no error.
        state.uneven.pop(prefix)
    last = client.workers - 1
    for one in joining.wrappers:
        if len(one.contributors) < client.workers:
            last = max(one.contributors)
            one.align(last)
    return last


class _Followers:
    """A thread for each kind of round: workers may come to them in any order, and make more of one than of another."""

    def __init__(self, shadows: list[Callable[[], bool]]) -> None:
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._count = len(shadows)
        for shadow in shadows:
            threading.Thread(target=self._follow, args=(shadow,), daemon=True).start()

    def _follow(self, shadow: Callable[[], bool]) -> None:
        try:
            while shadow():
                pass
            self._ended.put(None)
        except BaseException as error:
            self._ended.put(error)

    def wait(self) -> None:
        for _ in range(self._count):
            error = self._ended.get()
            if error is not None:
                raise error
