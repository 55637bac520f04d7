"""Arrays from one worker to another, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire.client import Client

from conftest import together


def on_each(work: Callable[[Client], Any], workers: int = 2, **settings: Any) -> list[Any]:
    """What the workers of a cluster return, each in a thread of its own."""
    with gradwire.launch(servers=2, workers=workers, **settings) as cluster:
        clients = sorted(together([cluster.connect] * workers), key=lambda client: client.rank)
        try:
            return together([lambda client=client: work(client) for client in clients])
        finally:
            together([client.close for client in clients])


def arrays() -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return [
        random.normal(size=(300, 1001)).astype("float32"),
        np.array([-0.0, np.nan, np.inf]),
        np.arange(7, dtype="uint8"),
        np.array(3, "int64"),
        np.empty((0, 4), "float32"),
        random.normal(size=(1001, 300)).astype("float32").T,
    ]


@pytest.mark.parametrize("driver", ["shm", "tcp"])
def test_what_is_sent_arrives_with_its_bits_dtype_and_shape(driver: str) -> None:
    def work(client: Client) -> list[np.ndarray[Any, Any]]:
        if client.rank == 0:
            for array in arrays():
                mine = array.copy()
                client.send(mine, 1, "of any kind")
                mine[...] = 0
            client.barrier()
            return []
        got = [client.recv(0, "of any kind") for _ in arrays()]
        client.barrier()
        return got

    _, got = on_each(work, transport=driver)
    for one, sent in zip(got, arrays()):
        assert (one.dtype, one.shape) == (sent.dtype, sent.shape) and one.tobytes() == sent.tobytes()


def test_all_send_before_they_receive() -> None:
    def work(client: Client) -> list[float]:
        others = [rank for rank in range(client.workers) if rank != client.rank]
        seen = []
        for step in range(20):
            for rank in others:
                client.send(np.full(100, 100.0 * step + client.rank), rank, "step")
            seen += [float(client.recv(rank, "step", "float64", 100).mean()) for rank in others]
        client.barrier()
        return seen

    for rank, seen in enumerate(on_each(work, workers=3)):
        assert seen == [100.0 * step + other for step in range(20) for other in range(3) if other != rank]


def test_names_do_not_wait_for_each_other_and_a_worker_sends_to_itself() -> None:
    def work(client: Client) -> list[int]:
        if client.rank == 0:
            for name in "ab":
                client.send(np.array([ord(name)]), 1, name)
            client.send(np.array([5]), 0, "own")
            assert client.recv(0, "own", shape=[None]) == [5]
            client.barrier()
            return []
        got = [int(client.recv(0, name)[0]) for name in "ba"]
        client.barrier()
        return got

    assert on_each(work)[1] == [ord("b"), ord("a")]


def test_another_dtype_or_shape_is_an_error_of_both() -> None:
    def work(client: Client) -> list[str]:
        errors = []
        wrong: list[dict[str, Any]] = [{"dtype": "float64"}, {"shape": (4, None)}, {"shape": 3}, {"shape": ()}]
        for words in wrong:
            if client.rank == 0:
                client.send(np.zeros((3, 4), "float32"), 1, "x")
            else:
                with pytest.raises(gradwire.InputError, match="recv of 'x' from worker 0: it has dtype f32, shape .3, 4., and not"):
                    client.recv(0, "x", **words)
            client.barrier()
            if client.rank == 0:
                with pytest.raises(gradwire.InputError, match="send of 'x' to worker 1: the one before was refused there: recv of 'x'") as refused:
                    client.send(np.zeros(3), 1, "x")
                errors.append(refused.value.code)
        if client.rank == 0:
            client.send(np.ones(3), 1, "x")
        else:
            assert client.recv(0, "x", "float64", (None,)).sum() == 3
        client.barrier()
        return errors

    assert on_each(work)[0] == ["refused"] * 4


def test_what_does_not_come_or_is_not_received_is_told() -> None:
    def work(client: Client) -> None:
        if client.rank == 1:
            with pytest.raises(gradwire.DeadlineError, match="recv of 'never' from worker 0: it has sent nothing of this name within"):
                client.recv(0, "never")
        else:
            client.send(np.zeros(3), 1, "twice")
            with pytest.raises(gradwire.DeadlineError, match="send of 'twice' to worker 1: the one before was not received"):
                client.send(np.ones(3), 1, "twice")
        client.barrier()
        with pytest.raises(gradwire.InputError, match="there is no such worker: pass a rank from 0 to 1"):
            client.send(np.zeros(3), 2, "x")
        with pytest.raises(gradwire.InputError, match="the name must be a string that is not empty"):
            client.recv(0, "")
        with pytest.raises(gradwire.InputError, match="unsupported dtype"):
            client.send(np.array(["text"]), 1, "x")

    on_each(work, deadlines__operation_ms=500, deadlines__busy_ms=500)


def test_a_worker_that_leaves_is_not_waited_for() -> None:
    def work(client: Client) -> None:
        if client.rank == 0:
            client.send(np.arange(4), 1, "last")
            client.barrier()
            client.close()
            return
        assert client.recv(0, "last").tolist() == [0, 1, 2, 3]
        client.barrier()
        with pytest.raises(gradwire.MemberDiedError, match="recv of 'more' from worker 0: .*has left the job"):
            client.recv(0, "more")

    on_each(work, deadlines__busy_ms=60_000)
