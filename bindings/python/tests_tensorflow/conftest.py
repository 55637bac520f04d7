"""What the tests of TensorFlow share: workers, as threads of this process or as processes."""

from __future__ import annotations

import os

# Before TensorFlow is imported, here and in the processes that tests start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import threading
from collections.abc import Callable
from typing import Any

import pytest

import gradwire
from gradwire.client import Client

#: Longer than anything here takes on a busy machine; processes import TensorFlow first.
PATIENCE_S = 180.0


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    """Each driver that needs no device."""
    return str(request.param)


def on_each(work: Callable[[Client], Any], workers: int = 2, **settings: Any) -> list[Any]:
    """What each worker's thread returns. For eager operations: threads of one process share the few threads on which graphs run."""
    results: list[Any] = [None] * workers
    errors: list[BaseException] = []

    def run(cluster: gradwire.Cluster, rank: int) -> None:
        try:
            with cluster.connect(node__rank=rank) as client:
                results[rank] = work(client)
        except BaseException as error:
            errors.append(error)

    with gradwire.launch(servers=2, workers=workers, **settings) as cluster:
        threads = [threading.Thread(target=run, args=(cluster, rank), daemon=True) for rank in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert errors or not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
    return results


def in_processes(work: Callable[..., Any], *args: Any, workers: int = 2, **settings: Any) -> list[Any]:
    """What each worker's process returns."""
    with gradwire.launch(servers=2, workers=workers, **settings) as cluster:
        return cluster.run(work, *args, timeout_s=PATIENCE_S)
