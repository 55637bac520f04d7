"""Arrays from one worker to another, by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
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


def test_each_worker_sends_to_each_other_one_many_times() -> None:
    def work(client: Client) -> list[float]:
        seen = []
        for step in range(20):
            for rank in range(client.workers):
                if client.rank < rank:
                    client.send(np.full(100, 100.0 * step + client.rank), rank, "step")
                if client.rank != rank:
                    seen.append(float(client.recv(rank, "step", "float64", 100).mean()))
                if client.rank > rank:
                    client.send(np.full(100, 100.0 * step + client.rank), rank, "step")
        return seen

    for rank, seen in enumerate(on_each(work, workers=3)):
        assert seen == [100.0 * step + other for step in range(20) for other in range(3) if other != rank]


def test_threads_send_and_receive_at_once_and_a_worker_sends_to_itself() -> None:
    def work(client: Client) -> list[int]:
        if client.rank == 1:
            received = together([lambda name=name: int(client.recv(0, name)[0]) for name in "abcaa"])
            return received[1:3] + sorted(received[0:1] + received[3:])
        together([lambda value=value: client.send(np.array([value]), 1, "a") for value in range(3)] + [lambda: client.send(np.array([7]), 1, "b"), lambda: client.send(np.array([8]), 1, "c")])
        _, own = together([lambda: client.send(np.array([5]), 0, "own"), lambda: client.recv(0, "own", shape=[None])])
        return [int(own[0])]

    assert on_each(work) == [[5], [7, 8, 0, 1, 2]]


def test_lengths_that_differ_share_places() -> None:
    lengths = [*range(1, 60), 4096, 4097, 5000, 100_000, 100_001, 99_000]

    def work(client: Client) -> int:
        for length in lengths:
            array = np.arange(length, dtype="uint8")
            if client.rank == 0:
                client.send(array, 1, "x")
            else:
                assert np.array_equal(client.recv(0, "x", "uint8", [None]), array)
        return len(client._transfers._incoming[0, "x"].places) if client.rank else 0

    assert on_each(work)[1] == 3, "4 KiB, 8 KiB, 100 kB"


def test_another_dtype_or_shape_is_an_error_of_both() -> None:
    wrong: list[dict[str, Any]] = [{"dtype": "float64"}, {"shape": (4, None)}, {"shape": 3}, {"shape": ()}]

    def work(client: Client) -> None:
        for words in wrong:
            if client.rank == 0:
                with pytest.raises(gradwire.InputError, match="send of 'x' to worker 1: worker 1 refused it: recv of 'x' from worker 0: the array has") as refused:
                    client.send(np.zeros((3, 4), "float32"), 1, "x")
                assert refused.value.code == "refused"
            else:
                with pytest.raises(gradwire.InputError, match="recv of 'x' from worker 0: the array has dtype float32 and shape .3, 4., but recv expects"):
                    client.recv(0, "x", **words)
        if client.rank == 0:
            # In the byte order of other machines.
            client.send(np.ones(3, ">f8"), 1, "x")
        else:
            assert client.recv(0, "x", "float64", (None,)).sum() == 3

    on_each(work)


def test_what_does_not_come_or_is_not_received_is_told() -> None:
    def work(client: Client) -> None:
        if client.rank == 1:
            for _ in range(2):
                with pytest.raises(gradwire.DeadlineError, match="recv of 'never' from worker 0: worker 0 has sent no array of this name within 1 s"):
                    client.recv(0, "never")
            client.barrier()
            # What was announced first has been overwritten.
            assert client.recv(0, "twice").tolist() == [2.0] * 3
        else:
            for value in range(2):
                with pytest.raises(gradwire.DeadlineError, match="send of 'twice' to worker 1: worker 1 did not call recv within 1 s"):
                    client.send(np.full(3, float(value)), 1, "twice")
            client.barrier()
            client.send(np.full(3, 2.0), 1, "twice")

    on_each(work, deadlines__operation_ms=1000, deadlines__busy_ms=1000)


def test_wrong_arguments_and_messages_are_refused() -> None:
    def work(client: Client) -> None:
        for rank in (2, -1, True):
            with pytest.raises(gradwire.InputError, match="there is no such worker: pass a rank from 0 to 1"):
                client.send(np.zeros(3), rank, "x")
        for name in ("", "x" * 129, b"x"):
            with pytest.raises(gradwire.InputError, match="the name must be a string of 1 to 128 bytes"):
                client.recv(0, name)  # type: ignore[arg-type]
        with pytest.raises(gradwire.InputError, match="send of 'x' to worker 1: unsupported dtype"):
            client.send(np.array(["text"]), 1, "x")
        with pytest.raises(gradwire.InputError, match="recv of 'x' from worker 1: unsupported dtype"):
            client.recv(1, "x", "flaot32")
        for body in (b"", b"{", b"[]", b"{}", b'{"name": 1}', b'{"name": "x", "dtype": "f9", "shape": [1], "checksum": 1}'):
            assert client._post(1 - client.rank, body).wait().startswith(b"invalid message: ")
        for shape in ("3", "[-1]", "[1.5]", "[1000000000000, 1000]", str([1] * 40)):
            said = b'{"name": "x", "dtype": "f32", "shape": %s, "checksum": 1}' % shape.encode()
            assert client._post(1 - client.rank, said).wait().startswith(b"invalid message: ")
        client.barrier()

    on_each(work)


def test_a_worker_that_leaves_is_not_waited_for() -> None:
    def work(client: Client) -> None:
        if client.rank == 0:
            client.send(np.arange(4), 1, "last")
            client.close()
            with pytest.raises(gradwire.ClosedError, match="send of 'x' to worker 1"):
                client.send(np.arange(4), 1, "x")
            return
        assert client.recv(0, "last").tolist() == [0, 1, 2, 3]
        with pytest.raises(gradwire.MemberDiedError, match="recv of 'more' from worker 0: .*has left the job"):
            client.recv(0, "more")

    on_each(work, deadlines__busy_ms=60_000)


def test_closing_ends_a_wait() -> None:
    def work(client: Client) -> None:
        if client.rank == 0:

            def receive() -> None:
                with pytest.raises(gradwire.ClosedError, match="recv of 'never' from worker 1"):
                    client.recv(1, "never")

            together([receive, client.close])

    on_each(work)


def back(cluster: gradwire.Cluster) -> Client:
    """Rank 0 again, as soon as the scheduler has noticed that its process is gone."""
    until = time.monotonic() + 60
    while True:
        try:
            return cluster.connect(node__rank=0)
        except gradwire.ConnectError:
            assert time.monotonic() < until
            time.sleep(0.1)


def test_a_worker_that_was_restarted_sends_again() -> None:
    script = "import os, numpy as np, gradwire\nclient = gradwire.connect()\nfor value in range(3): client.send(np.full(2000, 1.0 * value), 1, 'x')\nos._exit(9)"

    def values(client: Client, count: int) -> list[float]:
        return [float(client.recv(0, "x").mean()) for _ in range(count)]

    with gradwire.launch(servers=2, workers=2, cluster__worker_loss="wait") as cluster:
        environ = {**cluster.environ(0), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        first = subprocess.Popen([sys.executable, "-c", script], env=environ)
        with cluster.connect(node__rank=1) as receiver:
            assert values(receiver, 3) == [0, 1, 2]
            assert first.wait(60) == 9
            with back(cluster) as sender:
                sends = [lambda value=value: sender.send(np.full(2000, 10.0 + value), 1, "x") for value in range(4)]
                _, received = together([lambda: [send() for send in sends], lambda: values(receiver, 4)])
                assert received == [10, 11, 12, 13]
