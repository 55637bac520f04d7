"""Parameters at servers: Keras' optimizers as rules there, in every mode, beside one process."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import gradwire
import gradwire.tensorflow as gw
from conftest import PATIENCE_S, in_processes, on_each
from gradwire.client import Client
from gradwire.tensorflow import _native_ops

STEPS, BATCH = 12, 8
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
}


def model_of(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)])
    return model


def data_of() -> tuple[Any, Any]:
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype("float32"), labels.astype("int32")


def train(model: Any, optimizer: Any, rows: Iterable[Any], in_graph: bool) -> list[Any]:
    images, labels = data_of()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    run = tf.function(step) if in_graph else step
    for at, some in enumerate(rows):
        if at == STEPS // 2:
            optimizer.learning_rate = 0.02
        run(tf.constant(images[some]), tf.constant(labels[some]))
    return [variable.numpy() for variable in model.trainable_variables]


def rows_of(rank: int) -> list[Any]:
    return [np.arange(BATCH) + BATCH * (2 * step + rank) for step in range(STEPS)]


def on_servers(client: Client, in_graph: bool) -> dict[str, Any]:
    found = {}
    for name, make in OPTIMIZERS.items():
        # Rank 0's values count.
        optimizer = gw.ParameterServerOptimizer(make(), mode="sync", prefix=f"{name}.", client=client)
        model = model_of(client.rank)
        if not in_graph:
            optimizer.build(model.trainable_variables)
        found[name] = train(model, optimizer, rows_of(client.rank), in_graph)
        assert int(optimizer.iterations) == STEPS
    return found


def check(found: list[dict[str, Any]]) -> None:
    both = [np.concatenate(pair) for pair in zip(rows_of(0), rows_of(1))]
    for name in found[0]:
        expected = train(model_of(0), OPTIMIZERS[name](), both, True)
        for mine, its, alone in zip(found[0][name], found[1][name], expected):
            assert np.array_equal(mine, its), name
            np.testing.assert_allclose(mine, alone, rtol=1e-3, atol=1e-5, err_msg=name)


def test_rules_on_servers_are_those_of_keras_in_graphs() -> None:
    check(in_processes(on_servers, True))


def test_rules_on_servers_are_those_of_keras_eagerly() -> None:
    # In processes: threads share Keras' seeds.
    check(in_processes(on_servers, False))


def python_way_worker(client: Client) -> dict[str, Any]:
    _native_ops.are_used = lambda: False
    return on_servers(client, True)


def test_python_functions_give_the_same_parameters() -> None:
    check(in_processes(python_way_worker))


def wrong_gradient(client: Client) -> None:
    variable = tf.Variable(tf.zeros(10))
    optimizer = gw.ParameterServerOptimizer(keras.optimizers.SGD(0.1), client=client)
    optimizer.build([variable])
    with pytest.raises(tf.errors.InvalidArgumentError, match="has shape .1000.*the variable has .10,"):
        optimizer.apply([tf.ones(1000)], [variable])
    unknown = tf.function(lambda one: optimizer.apply([one], [variable]), input_signature=[tf.TensorSpec([None])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="has 1000 elements of float32, and had 10 of float32"):
        unknown(tf.ones(1000))
    unknown(tf.ones(10))
    assert variable.numpy().tolist() == pytest.approx([-0.1] * 10)
    [row] = gw.report(client)
    assert (row.rule, row.shape, row.copies_out) == ("parameters", (10,), 0)


def test_a_gradient_of_another_shape_is_refused() -> None:
    on_each(wrong_gradient, workers=1)


def killing(client: Client, server: int) -> dict[str, Any]:
    def rows_and_a_kill() -> Iterator[Any]:
        for step, rows in enumerate(rows_of(client.rank)):
            if step == 4 and client.rank == 0:
                os.kill(server, signal.SIGKILL)
            yield rows

    optimizer = gw.ParameterServerOptimizer(OPTIMIZERS["adam"](), mode="sync", client=client)
    return {"adam": train(model_of(client.rank), optimizer, rows_and_a_kill(), True)}


def test_nothing_is_lost_with_a_server() -> None:
    with gradwire.launch(servers=3, workers=2, cluster__replicas=1) as cluster:
        found = cluster.run(killing, cluster.process("server-1").pid, timeout_s=PATIENCE_S)
        assert cluster.process("server-1").poll() is not None
    check(found)


def sequence_model() -> Any:
    """That reads digits line by line."""
    keras.utils.set_random_seed(7)
    layers = keras.layers
    return keras.Sequential([keras.Input((64,)), layers.Reshape((8, 8)), layers.LSTM(24), layers.Dense(10)])


def accuracy(kind: str, rank: int, workers: int, wrap: Callable[[Any], Any], meet: Callable[[], Any]) -> float:
    """The accuracy of a model on data that no worker has, after a training with the data of one worker."""
    images, labels = data_of()
    held_out = np.arange(len(labels)) % 5 == 0
    mine = np.flatnonzero(~held_out)[:1400][rank::workers]
    model = sequence_model() if kind == "sequence" else model_of(7)
    optimizer = keras.optimizers.Adam(0.01) if kind == "sequence" else keras.optimizers.SGD(0.1, momentum=0.5)
    model.compile(
        optimizer=wrap(optimizer),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(images[mine], labels[mine], batch_size=20, epochs=12, verbose=0, shuffle=True)
    meet()
    return float(model.evaluate(images[held_out], labels[held_out], verbose=0, return_dict=True)["accuracy"])


def fit(client: Client, mode: Any, kind: str) -> float:
    def wrap(optimizer: Any) -> Any:
        return gw.ParameterServerOptimizer(optimizer, mode=mode, client=client)

    return accuracy(kind, client.rank, client.workers, wrap, client.barrier)


@functools.cache
def accuracy_of_one_process(kind: str) -> float:
    return accuracy(kind, 0, 1, lambda optimizer: optimizer, lambda: None)


@pytest.mark.parametrize(("mode", "kind"), [("sync", "image"), ("async", "image"), (2, "image"), ("sync", "sequence")])
def test_a_model_learns_what_one_process_learns_in_every_mode(mode: Any, kind: str) -> None:
    accuracies, alone = in_processes(fit, mode, kind), accuracy_of_one_process(kind)
    # Gradients that are late, in the other modes, make it vary more.
    least = alone - (0.03 if mode == "sync" else 0.05)
    assert min(accuracies) >= least and alone > 0.9, (accuracies, alone)


def refusals(client: Client) -> None:
    def refused(words: str, make: Any) -> None:
        with pytest.raises(tf.errors.InvalidArgumentError, match=words):
            gw.ParameterServerOptimizer(make(), client=client)

    optimizers = keras.optimizers
    refused("no rule for Lion", optimizers.Lion)
    refused("clipnorm", lambda: optimizers.SGD(0.1, clipnorm=1.0))
    refused("amsgrad", lambda: optimizers.Adam(amsgrad=True))
    refused("initial_accumulator_value", optimizers.Adagrad)
    refused("weight_decay", lambda: optimizers.SGD(0.1, weight_decay=0.1))
    refused("schedule", lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)))
    refused("no optimizer of Keras", object)
    refused("wrapped already", lambda: gw.ParameterServerOptimizer(optimizers.SGD(0.1), client=client))
    kept = keras.Variable(np.ones(3, "float32"))
    kept.constraint = keras.constraints.NonNeg()
    with pytest.raises(tf.errors.InvalidArgumentError, match="constraint"):
        gw.ParameterServerOptimizer(optimizers.SGD(0.1), client=client).build([kept])
    optimizer = gw.ParameterServerOptimizer(optimizers.SGD(0.1), client=client)
    table = keras.layers.Embedding(10, 2)
    table.build((None,))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table(tf.constant([1, 2])))
    gradients = tape.gradient(loss, table.trainable_variables)
    optimizer.build(table.trainable_variables)
    with pytest.raises(tf.errors.InvalidArgumentError, match="sparse_as_dense"):
        optimizer.apply_gradients(zip(gradients, table.trainable_variables))


def unbuilt(client: Client) -> None:
    optimizer = gw.ParameterServerOptimizer(keras.optimizers.SGD(0.1), client=client)
    with pytest.raises(tf.errors.FailedPreconditionError, match="optimizer.build"):
        train(model_of(client.rank), optimizer, rows_of(client.rank), False)
    # Two models of one kind are two, and so are two variables of one path.
    models = [model_of(client.rank + 2 * at) for at in range(2)]
    for model in models:
        model.optimizer = gw.ParameterServerOptimizer(keras.optimizers.SGD(0.1), client=client)
        model.optimizer.build(model.trainable_variables)
    values = [[variable.numpy() for variable in model.trainable_variables] for model in models]
    for at, mine in enumerate(values):
        assert all(map(np.array_equal, mine, [one.numpy() for one in model_of(2 * at).trainable_variables])), at
    same = [keras.Variable(np.full(3, float(at + client.rank), "float32"), name="same") for at in range(2)] + [keras.Variable(1.5)]
    one = gw.ParameterServerOptimizer(keras.optimizers.SGD(1.0), client=client)
    one.build(same)
    # Only the second has a gradient.
    one.apply([None, tf.ones(3), None], same)
    assert [variable.numpy().tolist() for variable in same] == [[0.0] * 3, [0.0] * 3, 1.5], same
    with pytest.raises(ValueError, match="2 gradients for 3"):
        one.apply([tf.ones(3)] * 2, same)


def test_gradients_of_other_variables_are_refused() -> None:
    in_processes(unbuilt)


def test_what_servers_cannot_do_is_refused_by_name() -> None:
    on_each(refusals, workers=1)
