"""What the tests share: clusters of real programs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gradwire

#: Longer than anything here takes on a busy machine.
PATIENCE_S = 60.0


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each driver that needs no device."""
    return str(request.param)


@pytest.fixture
def client(transport: str) -> Iterator[gradwire.Client]:
    """The only worker of a cluster with two servers."""
    with gradwire.launch(servers=2, transport=transport, deadlines__heartbeat_ms=50) as cluster:
        with cluster.connect() as one:
            yield one


@pytest.fixture
def one() -> Iterator[gradwire.Client]:
    """The only worker of a cluster with one server, over shared memory."""
    with gradwire.launch() as cluster, cluster.connect() as client:
        yield client


def together(works: list[Callable[[], Any]], patience_s: float = PATIENCE_S) -> list[Any]:
    """Runs them at once, a thread each; raises what one raises."""
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []

    def run(at: int, work: Callable[[], Any]) -> None:
        try:
            results[at] = work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
        assert errors or not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results
