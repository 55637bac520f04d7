"""Named tensors: eagerly, in graphs on few threads, with gradients; broadcasts; bad input; failures."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import gradwire
import gradwire.tensorflow as gw
from conftest import in_processes, on_each
from gradwire.client import Client
from gradwire.tensorflow import _errors, _exchange, _graph


def test_tensors_are_averaged_and_summed_eagerly(transport: str) -> None:
    def work(client: Client) -> None:
        mine = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (client.rank + 1)
        for _ in range(3):
            assert gw.push_pull(mine, "a", client=client).numpy().tolist() == [[1.5, 3.0], [4.5, 6.0]]
        assert gw.push_pull(mine, "a", average=False, client=client).numpy().tolist() == [[3.0, 6.0], [9.0, 12.0]]
        assert gw.push_pull(mine[0, 0], client=client).numpy() == 1.5
        half = gw.push_pull(tf.cast(mine, tf.bfloat16), "half", client=client)
        assert half.dtype == tf.bfloat16 and tf.cast(half, tf.float32).numpy().tolist() == [[1.5, 3.0], [4.5, 6.0]]
        counts = gw.push_pull(tf.constant([1, 10], tf.int64), "counts", average=False, client=client)
        assert counts.dtype == tf.int64 and counts.numpy().tolist() == [2, 20]
        sent = tf.constant([0.1 + client.rank])
        coded = gw.push_pull(sent, "coded", compression=gw.Compression.fp16, client=client).numpy()[0]
        assert coded == pytest.approx(0.6, abs=1e-3) and coded != np.float32(0.6)
        gw.push(mine, "pushed", client=client)
        assert gw.pull(mine, "pushed", client=client).numpy().tolist() == [[1.5, 3.0], [4.5, 6.0]]

    on_each(work, transport=transport)


def test_gradients_are_averaged_as_well() -> None:
    def work(client: Client) -> None:
        mine = tf.constant([1.0, 2.0]) * (client.rank + 1)
        for average, expected in ((True, [1.5, 1.5]), (False, [3.0, 3.0])):
            with tf.GradientTape() as tape:
                tape.watch(mine)
                loss = tf.reduce_sum(gw.push_pull(mine, "a", average, client=client) * (client.rank + 1.0))
            assert tape.gradient(loss, mine).numpy().tolist() == expected

    on_each(work)


def graph_worker(client: Client, threads: int) -> list[Any]:
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    mine = tf.constant([1.0, 2.0]) * (client.rank + 1)

    @tf.function
    def step(mine: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(mine)
            loss = tf.reduce_sum(gw.push_pull(mine, "loss", client=client) * (client.rank + 1.0))
        total = tf.zeros_like(mine)
        for _ in tf.range(3):
            total += gw.push_pull(mine, "loop", client=client)
        if total[0] > 0:
            total += gw.push_pull(mine, "branch", client=client)
        many = [gw.push_pull(mine + at, f"many.{at}", client=client) for at in range(20)]
        # Each worker reads the results in an order of its own.
        many = many if client.rank == 0 else many[::-1]
        gw.push(mine, "pushed", client=client)
        pulled = gw.pull(mine, "pushed", client=client)
        same = gw.push_pull(mine, "same", client=client) + 10 * gw.push_pull(2 * mine, "same", client=client)
        unnamed = gw.push_pull(mine, client=client) + 10 * gw.push_pull(2 * mine, client=client)
        root = gw.broadcast(mine, 1, client=client)
        return tape.gradient(loss, mine), total, tf.add_n(many), pulled, same, unnamed, root

    for _ in range(30):
        got = step(mine)
    return [one.numpy().tolist() for one in got]


@pytest.mark.parametrize(("threads", "driver"), [(1, "shm"), (2, "shm"), (2, "tcp")])
def test_a_graph_on_few_threads_never_deadlocks(threads: int, driver: str) -> None:
    expected = [[1.5, 1.5], [6.0, 12.0], [220.0, 250.0], [1.5, 3.0], [31.5, 63.0], [31.5, 63.0], [2.0, 4.0]]
    assert in_processes(graph_worker, threads, transport=driver) == [expected] * 2


def test_all_starts_are_in_the_order_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    begin = _exchange.start
    monkeypatch.setattr(_graph, "start", lambda request, array: (seen.append(request.name), begin(request, array))[1])

    @tf.function
    def step(mine: Any, large: Any) -> Any:
        # Ready late, but first in the program.
        late = gw.push_pull(tf.linalg.matmul(large, large)[0, :2], "late", client=client)
        for _ in tf.range(2):
            mine += gw.push_pull(mine, "loop", client=client)
        return late, [gw.push_pull(mine, f"{at}", client=client) for at in range(8)]

    with gradwire.launch() as cluster, cluster.connect() as client:
        for _ in range(5):
            seen.clear()
            step(tf.ones(2), tf.ones((300, 300)))
            assert seen == ["late", "loop", "loop", *map(str, range(8))]


def test_a_graph_copies_each_tensor_once_in_and_once_out(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, results = [], []
    begin, end = _exchange.start, _exchange.Operation.wait
    monkeypatch.setattr(_graph, "start", lambda request, array: (starts.append(array.ctypes.data), begin(request, array))[1])
    monkeypatch.setattr(_exchange.Operation, "wait", lambda self: (results.append(end(self)), results[-1])[1])

    def place(tensor: Any) -> int:
        return int(np.frombuffer(tensor, np.float32).ctypes.data)

    step = tf.function(lambda one: gw.push_pull(one, "a", client=client))
    with gradwire.launch() as cluster, cluster.connect() as client:
        sent = tf.random.normal([1000])
        got = step(sent)
        # What Python sees is TensorFlow's own memory: the only copies are those from it to the buffer, and from the buffer.
        assert starts == [place(sent)] and place(got) == results[0].ctypes.data
        assert np.array_equal(got.numpy(), sent.numpy())


def test_bits_of_variables_are_those_of_the_root(transport: str) -> None:
    def work(client: Client) -> list[Any]:
        mine = client.rank
        values = [[-0.0, float("nan"), mine], mine == 1, [mine, 7], np.float16(mine + 0.5), np.uint32(2**31 + mine)]
        variables = [tf.Variable(one) for one in values]
        gw.broadcast_variables(variables, 1, client=client)
        gw.broadcast_variables(variables, 1, client=client)
        with pytest.raises(tf.errors.InvalidArgumentError, match="root_rank 2"):
            gw.broadcast_variables(variables, 2, client=client)
        return [one.numpy().tobytes() for one in variables]

    expected = [[-0.0, float("nan"), 1], True, [1, 7], np.float16(1.5), np.uint32(2**31 + 1)]
    for got in on_each(work, transport=transport):
        assert got == [tf.constant(one).numpy().tobytes() for one in expected]


def test_wrong_tensors_are_refused_with_their_names() -> None:
    def refused(*args: Any, **words: Any) -> str:
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            gw.push_pull(*args, client=client, **words)
        return str(error.value.message)

    with gradwire.launch() as cluster, cluster.connect() as client:
        for wrong in (tf.constant([True]), tf.constant(["a"]), tf.constant([1j])):
            assert f"push_pull of tensor 'a': unsupported dtype {wrong.dtype.name}" in refused(wrong, "a")
        assert "without elements" in refused(tf.zeros((0, 3)), "a")
        assert "compression" in refused(tf.ones(3), "a", compression="fp16")
        gw.push_pull(tf.ones(3), "b", client=client)
        assert "4 elements of float32, and had 3 of float32" in refused(tf.ones(4), "b")
        assert "3 elements of float64" in refused(tf.ones(3, tf.float64), "b")
        with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported dtype bool"):
            tf.function(lambda one: gw.push_pull(one, "c", client=client))(tf.constant([True]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"call gradwire\.tensorflow\.init\(\) first"):
        gw.push_pull(tf.ones(3), "a")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"call gradwire\.tensorflow\.init\(\) first"):
        tf.function(lambda one: gw.push_pull(one, "a"))(tf.ones(3))


def test_a_compiled_function_is_refused_and_the_flag_is_named() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:

        def step(one: Any) -> Any:
            return gw.push_pull(one, "a", client=client)

        inner = tf.function(step, jit_compile=True)
        for way in (inner, inner.get_concrete_function, tf.function(lambda one: inner(one))):
            with pytest.raises(tf.errors.UnimplementedError, match="push_pull of tensor 'a'.*jit_compile=False"):
                way(tf.ones(3))
        assert tf.function(step)(tf.ones(3)).numpy().tolist() == [1.0] * 3


def test_a_function_that_is_traced_again_continues() -> None:
    variables = [tf.Variable([1.0, 2.0])]

    @tf.function
    def step(count: int, factor: Any) -> Any:
        with gw.DistributedGradientTape(tf.GradientTape(), client=client) as tape:
            loss = tf.add_n([tf.reduce_sum(one * one) * factor for one in variables[:count]])
        return tape.gradient(loss, variables[:count])

    named = tf.function(lambda one: gw.push_pull(one, "named", client=client))
    unnamed = tf.function(lambda one: gw.push_pull(one, client=client))
    with gradwire.launch() as cluster, cluster.connect() as client:
        assert [one.numpy().tolist() for one in step(1, 1.0)] == [[2.0, 4.0]]
        variables.append(tf.Variable([[3.0]]))
        assert [one.numpy().tolist() for one in step(2, 1.0)] == [[2.0, 4.0], [[6.0]]]
        named(tf.ones(3))
        with pytest.raises(tf.errors.InvalidArgumentError, match="4 elements of float32, and had 3 of float32"):
            named(tf.ones(4))
        assert [len(unnamed(tf.ones(length))) for length in (3, 4, 3)] == [3, 4, 3]
        # Of the same shape again: the name of an operation does not depend on how often its function was traced.
        assert len(tf.function(lambda one: gw.push_pull(one, client=client))(tf.ones(3))) == 3


def test_each_error_is_one_of_tensorflow_s_with_the_same_text() -> None:
    expected = {
        gradwire.InputError: tf.errors.InvalidArgumentError,
        gradwire.DeclareError: tf.errors.InvalidArgumentError,
        gradwire.SettingError: tf.errors.InvalidArgumentError,
        gradwire.MemberDiedError: tf.errors.UnavailableError,
        gradwire.ConnectError: tf.errors.UnavailableError,
        gradwire.DeadlineError: tf.errors.DeadlineExceededError,
        gradwire.PoolError: tf.errors.ResourceExhaustedError,
        gradwire.ClosedError: tf.errors.FailedPreconditionError,
        gradwire.ForkError: tf.errors.FailedPreconditionError,
        gradwire.OperationError: tf.errors.AbortedError,
        gradwire.Error: tf.errors.UnknownError,
    }
    for ours, theirs in expected.items():
        with pytest.raises(tf.errors.OpError, match="the reason") as error, _errors.as_tensorflow_errors():
            raise ours("the reason", "code")
        assert type(error.value) is theirs and type(error.value.__cause__) is ours


def failing_worker(client: Client, where: str, way: str, end: str) -> None:
    """Rank 1 fails in its third step; rank 0 writes what it gets."""
    mine = tf.ones(1000)
    step = tf.function(lambda one: gw.push_pull(one, "a", client=client)) if way == "graph" else None
    try:
        for turn in range(5):
            if client.rank == 1 and turn == 2:
                if end == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                mine = tf.constant(["no number"])
            begun = time.monotonic()
            step(mine) if step is not None else gw.push_pull(mine, "a", client=client)
    except tf.errors.OpError as error:
        if client.rank == 1:
            raise
        Path(where).write_text(f"{type(error).__name__}|{time.monotonic() - begun}|{error.message}")


@pytest.mark.parametrize("end", ["killed", "wrong dtype"])
@pytest.mark.parametrize("way", ["eager", "graph"])
def test_a_failed_worker_reaches_the_other_one_at_once(way: str, end: str, transport: str, tmp_path: Path) -> None:
    where = tmp_path / "error"
    with pytest.raises(gradwire.LaunchError, match="worker 1"):
        in_processes(failing_worker, str(where), way, end, transport=transport, deadlines__operation_ms=60_000)
    kind, seconds, text = where.read_text().split("|", 2)
    # TensorFlow itself makes an UnknownError of an exception of Python's in a graph.
    assert kind == {"eager": "UnavailableError", "graph": "UnknownError"}[way]
    assert "worker 1" in text and float(seconds) < 30
    assert ("unsupported dtype string" in text) == (end == "wrong dtype")


def test_a_root_that_has_left_is_an_error() -> None:
    def work(client: Client) -> None:
        if client.rank == 0:
            with pytest.raises(tf.errors.AbortedError, match="broadcast of tensor 'a' from rank 1 failed: worker 1 has left"):
                gw.broadcast(tf.ones(3), 1, "a", client=client)

    on_each(work)


def test_a_forked_process_is_refused() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        sent = tf.ones(3)
        gw.push_pull(sent, "a", client=client)
        child = os.fork()
        if child == 0:
            try:
                gw.push_pull(sent, "a", client=client)
                os._exit(1)
            except tf.errors.FailedPreconditionError as error:
                os._exit(0 if "fork" in error.message else 2)
            except BaseException:
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert gw.push_pull(sent, "a", client=client).numpy().tolist() == [1.0] * 3


def test_results_that_nobody_fetches_are_bounded() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        tokens, request = _exchange.Tokens(), _exchange.Request("push_pull", "a", client=client)
        numbers = [tokens.add(request, _exchange.start(request, np.full(2, float(at)))) for at in range(_exchange.UNFETCHED_MAX + 1)]
        with pytest.raises(gradwire.OperationError, match="more than"):
            tokens.take(numbers[0])
        assert tokens.take(numbers[1]).wait().tolist() == [1.0, 1.0]
        assert tokens.take(numbers[-1]).wait().tolist() == [float(_exchange.UNFETCHED_MAX)] * 2
