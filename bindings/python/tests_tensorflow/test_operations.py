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
from gradwire.tensorflow import _errors, _exchange, _graph, _native_ops


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


@pytest.fixture
def python_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if TensorFlow did not take native operations."""
    monkeypatch.setattr(_native_ops, "are_used", lambda: False)


def order_of_starts(client: Client, prefix: str) -> None:
    @tf.function
    def step(mine: Any, large: Any) -> Any:
        # Ready late, but first in the program.
        late = gw.push_pull(tf.linalg.matmul(large, large)[0, :2], f"{prefix}late", client=client)
        for _ in tf.range(2):
            mine += gw.push_pull(mine, f"{prefix}loop", client=client)
        return late, [gw.push_pull(mine, f"{prefix}{at}", client=client) for at in range(8)]

    step(tf.ones(2), tf.ones((300, 300)))


def test_all_starts_are_in_the_order_of_the_program() -> None:
    # A tensor's place is made when its first operation starts.
    with gradwire.launch() as cluster, cluster.connect() as client:
        for turn in range(5):
            order_of_starts(client, f"{turn}.")
            names = [one.name for one in gw.report(client)][-10:]
            assert names == [f"{turn}.{name}" for name in ("late", "loop", *range(8))]


def test_all_starts_of_python_functions_are_in_the_order_of_the_program(monkeypatch: pytest.MonkeyPatch, python_way: None) -> None:
    seen: list[str] = []
    begin = _exchange.start
    monkeypatch.setattr(_graph, "start", lambda request, array: (seen.append(request.name), begin(request, array))[1])
    with gradwire.launch() as cluster, cluster.connect() as client:
        for _ in range(5):
            seen.clear()
            order_of_starts(client, "")
            assert seen == ["late", "loop", "loop", *map(str, range(8))]


def test_python_functions_give_the_same_values(python_way: None) -> None:
    def work(client: Client) -> None:
        mine = tf.constant([1.0, 2.0]) * (client.rank + 1)
        assert gw.push_pull(mine, "a", client=client).numpy().tolist() == [1.5, 3.0]
        gw.push(mine, "pushed", client=client)
        assert gw.pull(mine, "pushed", client=client).numpy().tolist() == [1.5, 3.0]
        with pytest.raises(tf.errors.UnimplementedError, match="allgather of tensor 'b.gathered' needs native operations"):
            gw.allgather(mine, "b", client=client)
        assert gw.report(client) == []

    on_each(work)


# VGG-16 has 32 tensors; here each is a hundredth of its size, in bytes.
VGG_ELEMENTS = [
    elements // 100 + 1
    for before, after in zip(
        [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512], [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    )
    for elements in (9 * before * after, after)
] + [1027605, 41, 167773, 41, 410, 1]


def vgg_worker(client: Client) -> None:
    names = [f"{at}" for at in range(len(VGG_ELEMENTS))]

    @tf.function
    def step(factor: Any) -> Any:
        means = gw.push_pull_all([tf.fill([elements], factor) for elements in VGG_ELEMENTS], names, client=client)
        return tf.add_n([tf.reduce_mean(one) for one in means])

    assert len(names) == 32
    for turn in range(4):
        total = step(tf.constant(float(turn + client.rank)))
        assert float(total) == pytest.approx(32 * (turn + 0.5))
    for one in gw.report(client):
        assert one.is_static and (one.operations, one.copies_in, one.copies_out) == (4, 4, 0)
    # An eager operation, too.
    assert gw.push_pull(tf.ones(1000), "eager", client=client).numpy().tolist() == [1.0] * 1000
    assert gw.report(client)[-1][-3:] == (1, 1, 0)


def test_results_are_used_where_they_landed_and_inputs_are_copied_once(transport: str) -> None:
    in_processes(vgg_worker, transport=transport)


def test_a_result_outlives_its_name_its_client_and_its_cluster() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        kept = [gw.push_pull(tf.fill([70_000], float(turn)), "a", client=client) for turn in range(10)]
        variable = tf.Variable(gw.push_pull(tf.ones(1000), "b", client=client))
        # A result is nobody else's memory: it is not written in place.
        variable.assign_add(tf.ones(1000))
        again = gw.push_pull(tf.fill([1000], 5.0), "b", client=client)
        assert variable.numpy().tolist() == [2.0] * 1000 and again.numpy().tolist() == [5.0] * 1000
    del cluster, client
    assert [one.numpy().tolist() == [float(turn)] * 70_000 for turn, one in enumerate(kept)] == [True] * 10


def unknown_worker(client: Client) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def step(rows: Any) -> Any:
        # A codec needs a length, and is left out.
        return gw.push_pull(rows, "rows", compression=gw.Compression.fp16, client=client)

    for count in (1, 5, 400, 341, 342, 2, 400):
        rows = tf.range(count * 3.0) * (client.rank + 1)
        got = step(tf.reshape(rows, [count, 3]))
        assert got.shape == (count, 3) and np.array_equal(got.numpy().ravel(), np.arange(count * 3) * 1.5)
    gw.push_pull(tf.ones([2, 3]), "fixed", average=False, client=client)
    table = [one for one in gw.report(client) if "lengths" not in one.name]
    assert [(one.name, one.rule, one.shape, one.is_static) for one in table] == [
        ("rows", "mean", (None, 3), False), ("rows", "mean", (None, 3), False), ("fixed", "sum", (2, 3), True)
    ]
    assert [one.operations for one in table] == [4, 3, 1] and sum(one.copies_out for one in table) == 0
    lines = str(gw.report(client)).splitlines()
    assert lines[0].split()[:4] == ["tensor", "rule", "shape", "dtype"]
    [of_rows] = {tuple(line.split()[2:7]) for line in lines if line.startswith("rows ")}
    assert of_rows == ("?", "x", "3", "float32", "dynamic") and "2 x 3" in lines[-1] and "static" in lines[-1]


def test_an_unknown_dimension_makes_a_tensor_dynamic_with_the_right_values(transport: str) -> None:
    in_processes(unknown_worker, transport=transport)


def several_rounds_worker(client: Client) -> list[Any]:
    """Two rounds of a dynamic tensor in flight."""

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(rows: Any) -> Any:
        first, second = gw.push_pull(rows, "rows", client=client), gw.push_pull(10 * rows, "rows", client=client)
        for _ in tf.range(3):
            second += gw.push_pull(rows, "rows", client=client)
        return first + second

    return [step(tf.ones(count) * (client.rank + 1)).numpy().tolist() for count in (3, 5, 3)]


def test_rounds_of_a_dynamic_tensor_are_in_order() -> None:
    assert in_processes(several_rounds_worker) == [[[21.0] * count for count in (3, 5, 3)]] * 2


def ragged_worker(client: Client) -> list[Any]:
    """A model with a ragged dimension: the mean of each row of tokens of another length."""
    table = tf.Variable(tf.reshape(tf.range(20.0), [10, 2]))

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def step(tokens: Any) -> Any:
        vectors = tf.gather(table, tokens.flat_values)
        return gw.push_pull(vectors, "vectors", client=client), gw.allgather(tokens.flat_values, "tokens", client=client)

    first = step(tf.ragged.constant([[1, 2, 3], [4 + client.rank]]))
    second = step(tf.ragged.constant([[client.rank]]))
    of_vectors = [one for one in gw.report(client) if one.name.startswith("vectors") and "lengths" not in one.name]
    assert of_vectors and all((one.is_static, one.shape) == (False, (None, 2)) for one in of_vectors)
    return [one.numpy().tolist() for one in (*first, *second)]


def test_a_ragged_dimension_has_the_right_values() -> None:
    expected = [
        [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [9.0, 10.0]], [1, 2, 3, 4, 1, 2, 3, 5],
        [[1.0, 2.0]], [0, 1],
    ]
    assert in_processes(ragged_worker) == [expected] * 2


def lengths_worker(client: Client, counts: list[int]) -> None:
    step = tf.function(lambda rows: gw.push_pull(rows, "rows", client=client), input_signature=[tf.TensorSpec([None])])
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="other workers have another length"):
            step(tf.ones(counts[client.rank]))
        # Nothing of it remains.
        assert step(tf.ones(counts[0]) * client.rank).numpy().tolist() == [0.5] * counts[0]


# In one power of two, and in two of them.
@pytest.mark.parametrize("counts", [[10, 11], [1000, 1030], [0x100000, 0x200000]])
def test_other_lengths_are_an_error_on_all_workers(counts: list[int]) -> None:
    in_processes(lengths_worker, counts)


def in_control_flow_worker(client: Client) -> list[Any]:
    if client.rank == 0:
        # Other operations of one worker change no names.
        tf.function(lambda: tf.while_loop(lambda at: at < 2, lambda at: (at + 1,), [tf.constant(0)]))()

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(rows: Any) -> Any:
        total = tf.zeros_like(rows)
        for _ in tf.range(2):
            total += gw.push_pull(rows, client=client)
        if tf.size(rows) > 1:
            total = tf.concat([total, gw.allgather(rows, client=client)], 0)
        return total

    return [step(tf.ones(count) * client.rank).numpy().tolist() for count in (1, 2)]


def test_unnamed_tensors_in_loops_and_branches_have_the_same_names() -> None:
    assert in_processes(in_control_flow_worker) == [[[1.0], [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]]] * 2


def unknown_gradient_worker(client: Client) -> list[float]:
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def step(rows: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss = tf.reduce_sum(gw.push_pull(rows, "rows", client=client) * (client.rank + 1.0))
        return tape.gradient(loss, rows)

    return step(tf.ones(3)).numpy().tolist()


def test_gradients_through_a_dynamic_tensor() -> None:
    assert in_processes(unknown_gradient_worker) == [[1.5] * 3] * 2


def test_a_push_that_is_refused_is_reported_by_the_pull() -> None:
    def work(client: Client) -> str:
        request = _exchange.Request("push", "a", client=client, is_of_any_length=True)
        pull, order = _exchange.Request("pull", "a", client=client, is_of_any_length=True), tf.constant(0, tf.int64)
        mine = tf.ones(10 + client.rank)
        try:
            # Whoever comes second; the other one is alone when it has left.
            _native_ops.start(request, mine, order)
            assert _native_ops.wait([_native_ops.start(pull, mine, order)], [mine])[0].shape == mine.shape
        except tf.errors.AbortedError as error:
            return str(error.message)
        return ""

    texts = sorted(on_each(work))
    assert texts[0] == "" and "push of tensor" in texts[1] and "was refused" in texts[1]


def test_tensors_of_all_workers_after_one_another(transport: str) -> None:
    def work(client: Client) -> None:
        for turn in range(3):
            # Rank 0 has none in the first turn.
            count = client.rank * 2 + turn
            mine = tf.cast(tf.fill([count, 2], client.rank + 10 * turn), tf.int64)
            got = gw.allgather(mine, "a", client=client)
            assert got.dtype == tf.int64
            assert got.numpy().tolist() == [[10 * turn] * 2] * turn + [[10 * turn + 1] * 2] * (turn + 2)
        # Without a name, too, and with no rows at all.
        assert gw.allgather(tf.ones([client.rank + 1]), client=client).numpy().tolist() == [1.0] * 3
        assert gw.allgather(tf.ones([0, 2]), client=client).shape == (0, 2)
        with pytest.raises(tf.errors.InvalidArgumentError, match="at least one dimension"):
            gw.allgather(tf.constant(1.0), client=client)
        with pytest.raises(tf.errors.InvalidArgumentError, match="other dimensions than the first one"):
            gw.allgather(tf.ones([1, 2, 3] if client.rank else [1, 3, 2]), "form", client=client)

    on_each(work, transport=transport)


def test_a_graph_is_found_again_by_what_it_asks_for() -> None:
    @tf.function(input_signature=[tf.TensorSpec([3])])
    def doubled(one: Any) -> Any:
        return 2 * gw.push_pull(one, "a", compression=gw.Compression.fp16)

    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"call gradwire\.tensorflow\.init\(\) first"):
            doubled(tf.ones(3))
        with gradwire.launch() as cluster:
            gw.init(scheduler=cluster.scheduler)
            try:
                assert doubled(tf.ones(3)).numpy().tolist() == [2.0] * 3
                assert [one.name for one in gw.report()] == ["a"]
            finally:
                gw.shutdown()


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
    # TensorFlow itself makes an InternalError of an UnavailableError in a graph.
    assert kind == {"eager": "UnavailableError", "graph": "InternalError"}[way]
    assert "worker 1" in text and float(seconds) < 30
    assert ("unsupported dtype string" in text) == (end == "wrong dtype")


def test_a_root_that_has_left_is_an_error() -> None:
    def work(client: Client) -> None:
        if client.rank == 0:
            with pytest.raises(tf.errors.AbortedError, match="broadcast of tensor 'a' from rank 1 failed: worker 1 has left"):
                gw.broadcast(tf.ones(3), 1, "a", client=client)

    on_each(work)


def test_a_closed_client_is_an_error() -> None:
    with gradwire.launch() as cluster:
        client = cluster.connect()
        step = tf.function(lambda one: gw.push_pull(one, "a", client=client))
        step(tf.ones(1000))
        client.close()
        for call in (step, lambda one: gw.push_pull(one, "a", client=client)):
            with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
                call(tf.ones(1000))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not a client"):
        gw.push_pull(tf.ones(3), "a", client="client")


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
        request, order = _exchange.Request("push_pull", "a", client=client), tf.constant(0, tf.int64)
        sent = [tf.fill([2], float(at)) for at in range(_exchange.UNFETCHED_MAX + 1)]
        tokens = [_native_ops.start(request, one, order) for one in sent]
        with pytest.raises(tf.errors.AbortedError, match="more than 256 operations of its name"):
            _native_ops.wait(tokens[:1], sent[:1])
        assert _native_ops.wait(tokens[1:2], sent[1:2])[0].numpy().tolist() == [1.0, 1.0]
        assert _native_ops.wait(tokens[-1:], sent[-1:])[0].numpy().tolist() == [float(_exchange.UNFETCHED_MAX)] * 2
        with pytest.raises(tf.errors.AbortedError, match="waited for before"):
            _native_ops.wait(tokens[1:2], sent[1:2])
        with pytest.raises(tf.errors.FailedPreconditionError, match="client was closed"):
            _native_ops.wait([order], sent[:1])


def test_results_of_python_functions_that_nobody_fetches_are_bounded() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        tokens, request = _exchange.Tokens(), _exchange.Request("push_pull", "a", client=client)
        numbers = [tokens.add(request, _exchange.start(request, np.full(2, float(at)))) for at in range(_exchange.UNFETCHED_MAX + 1)]
        with pytest.raises(gradwire.OperationError, match="more than"):
            tokens.take(numbers[0])
        assert tokens.take(numbers[1]).wait().tolist() == [1.0, 1.0]
        assert tokens.take(numbers[-1]).wait().tolist() == [float(_exchange.UNFETCHED_MAX)] * 2
