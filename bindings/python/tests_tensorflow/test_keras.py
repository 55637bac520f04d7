"""Keras: two workers get what one process with the data of both gets; callbacks; what is refused."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
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
from gradwire.launching import program

SCRIPT = Path(__file__).parent / "horovod_script.py"
PAGE = Path(__file__).resolve().parents[3] / "examples" / "readme" / "tensorflow_model.py"
STEPS, BATCH = 6, 8


def test_the_page_s_model_is_the_same_on_both_workers() -> None:
    launch = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", "--"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([*launch, sys.executable, str(PAGE)], capture_output=True, text=True, timeout=PATIENCE_S, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line[line.index("rank ") :] for line in (done.stdout + done.stderr).splitlines() if ": loss " in line)
    assert [line.split(":")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"], done.stderr
    first, second = [line.split("loss ")[1] for line in lines]
    # A guess costs ln 10 = 2.3.
    assert first == second and float(first.split(",")[0]) < 1.0


def run_script(where: Path, transport: str, script: Path = SCRIPT, path: str = "") -> list[Any]:
    """What its two workers left, started by `gradwire launch`."""
    command = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", "--transport", transport]
    done = subprocess.run(
        [*command, "--", sys.executable, "-m", "gradwire.run", str(script), str(where)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in [*sys.path, path] if one)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [np.load(where / f"{rank}.npz") for rank in range(2)]


def alone(_: Client, begun: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], list[float]]:
    """Weights and losses of one process that has the data of both workers of the script."""
    # As the script: in float32, 160 steps amplify differences of rounding to more than 1e-5.
    keras.config.set_floatx("float64")
    images, labels = load_digits(return_X_y=True)
    images /= 16.0
    model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(10)])
    at, weights = 0, []
    for one in model.get_weights():
        weights.append(begun[at : at + one.size].reshape(one.shape))
        at += one.size
    model.set_weights(weights)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    losses, steps = [], 40
    for epoch in range(4):
        of_epoch = []
        for step in range(steps):
            optimizer.learning_rate = 0.1 * (1 + min((epoch + (step + 1) / steps) / 2, 1.0))
            # The batches of both workers, whose data is interleaved.
            part = slice(32 * step, 32 * (step + 1))
            with tf.GradientTape() as tape:
                loss = loss_of(labels[part], model(images[part]))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            of_epoch.append(float(loss))
        losses.append(float(np.mean(of_epoch)))
    return np.concatenate([one.ravel() for one in model.get_weights()]), losses


def test_an_unchanged_horovod_script_learns_what_one_process_learns(transport: str, tmp_path: Path) -> None:
    first, second = run_script(tmp_path, transport)
    for name in ("begun", "learned", "losses"):
        assert np.array_equal(first[name], second[name]), name
    [(learned, losses)] = in_processes(alone, first["begun"], workers=1)
    assert not np.allclose(first["begun"], learned, atol=0.01)
    np.testing.assert_allclose(first["learned"], learned, rtol=1e-5)
    np.testing.assert_allclose(first["losses"], losses, rtol=1e-5)
    assert first["accuracy"] > 0.8 and first["rate"] == pytest.approx(0.2) and first["total"] == second["total"] == 3.0
    assert [one["place"].tolist() for one in (first, second)] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    # It is saved as a plain optimizer of Keras, with its state.
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is keras.optimizers.SGD and int(loaded.optimizer.iterations) == 160


MODULES = """
import os
import sys
import keras
import numpy as np
import tensorflow as tf
from byteps.tensorflow import keras as of_byteps
from horovod.tensorflow import keras as of_horovod
import byteps.keras, byteps.keras.callbacks, byteps.tensorflow.keras.callbacks
import horovod.keras, horovod.keras.callbacks, horovod.tensorflow.keras.callbacks
import byteps.tensorflow as bps
import horovod.tensorflow as hvd
import horovod.other

assert horovod.other.IS_INSTALLED
assert of_byteps is byteps.tensorflow.keras and of_horovod is horovod.tensorflow.keras
hvd.init()
assert hvd.is_initialized()
mine = tf.constant([1.0, 2.0]) * (hvd.rank() + 1)
results = [
    hvd.allreduce(mine),
    hvd.allreduce(mine, op=hvd.Sum),
    hvd.allreduce(mine, prescale_factor=2.0, postscale_factor=0.5, name="scaled"),
    bps.push_pull(mine, scope="a", name="b"),
    bps.push_pull(mine, average=False),
    hvd.broadcast(mine, root_rank=1, name="c"),
]
variable = tf.Variable(mine)
with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
    loss = tf.reduce_sum(variable * mine)
results.append(tape.gradient(loss, variable))
results += [
    hvd.keras.allreduce(mine, "loss", False),
    horovod.keras.allreduce(value=mine, name="mean"),
    byteps.keras.push_pull(value=mine, name="sum", average=False),
    bps.keras.broadcast(value=mine, root_rank=1),
    horovod.keras.allgather(mine[:1], "rows"),
    horovod.keras.allreduce([2.0, 4.0], "list", prescale_factor=0.5, op=hvd.Sum),
    hvd.broadcast(mine, 1, "d", ignore_name_scope=True),
    bps.broadcast(mine, 1, "scope", "d", is_variable=False),
]
hvd.broadcast_variables([variable], root_rank=1, inplace=True)
bps.broadcast_variables([variable], 1, "scope")
results.append(variable)


def rates(callback):
    seen = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(float(self.model.optimizer.learning_rate))

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.4), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, epochs=2, verbose=0, callbacks=[callback, Rates()])
    return seen


rates = [
    rates(horovod.keras.callbacks.LearningRateWarmupCallback(0.4, 1, verbose=1)),
    rates(byteps.keras.callbacks.LearningRateWarmupCallback(1, verbose=1)),
    rates(hvd.keras.callbacks.LearningRateScheduleCallback(0.4, 0.5)),
    rates(bps.keras.callbacks.LearningRateScheduleCallback(0.5)),
    rates(hvd.keras.callbacks.LearningRateScheduleCallback(0.4, lambda epoch: 1 + epoch, staircase=False)),
]
sgd = keras.optimizers.SGD
for optimizer in (
    hvd.DistributedOptimizer(sgd(0.1), "name", False, op=hvd.Sum),
    bps.DistributedOptimizer(sgd(0.1), "name", False, "", "", bps.Compression.none, True, 1, bps.Sum),
    horovod.keras.DistributedOptimizer(sgd(0.1), "name", "", "", hvd.Compression.none, True, 1.0, hvd.Sum, scale_local_gradients=True),
):
    optimizer.build([weights := tf.Variable([1.0, 1.0])])
    optimizer.apply([mine], [weights])
    results.append(weights)
assert not hvd.nccl_built() and horovod.keras.gloo_built() and hvd.cross_size() == 1
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.4), "mse", jit_compile=True)
path = f"{sys.argv[1]}/{hvd.rank()}.keras"
model.save(path)
for load in (horovod.keras.load_model, byteps.tensorflow.keras.load_model):
    loaded = load(path, custom_optimizers=[sgd])
    assert loaded.jit_compile is False
    loaded.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
for module in (hvd, bps, horovod.keras, byteps.keras, hvd.keras, bps.keras):
    try:
        module.broadcast_object
    except AttributeError as error:
        assert "Gradwire does not have" in str(error) and "docs/tensorflow.md" in str(error)
        continue
    raise AssertionError("it has what it does not have")
for module in (byteps.keras, byteps.tensorflow.keras, horovod.keras, horovod.tensorflow.keras, bps.keras, hvd.keras):
    assert module.callbacks.MetricAverageCallback and module.DistributedOptimizer
os.environ["BYTEPS_ENABLE_ASYNC"] = "1"
for wrong in (
    lambda: hvd.allreduce(mine, op="max"),
    lambda: hvd.allreduce(mine, "loss"),
    lambda: hvd.allreduce(mine, process_set=object()),
    lambda: bps.push_pull(mine, enable_async=True),
    lambda: bps.DistributedOptimizer(sgd(0.1)),
):
    try:
        wrong()
    except tf.errors.InvalidArgumentError:
        continue
    raise AssertionError("it was not refused")
np.savez(f"{sys.argv[1]}/{hvd.rank()}.npz", results=[one.numpy() for one in results], rates=rates)
bps.shutdown()
"""


def test_modules_and_arguments_of_horovod_and_byteps(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MODULES)
    # An installed Horovod, with a module that is not replaced.
    installed = tmp_path / "installed" / "horovod"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    (installed / "other.py").write_text("IS_INSTALLED = True\n")
    mean, total = [1.5, 3.0], [3.0, 6.0]
    for one in run_script(tmp_path, "shm", script, str(installed.parent)):
        of_keras = [total, mean, total, [2.0, 4.0], [1.0, 2.0], [2.0, 4.0], *[[2.0, 4.0]] * 3]
        stepped = [np.subtract(1, np.multiply(0.1, total)).tolist()] * 3
        expected = [mean, total, mean, mean, total, [2.0, 4.0], total, *of_keras, *stepped]
        np.testing.assert_allclose(one["results"], expected, rtol=1e-6)
        warm, half = [0.3, 0.4, 0.4, 0.4], [0.4, 0.4, 0.2, 0.2]
        np.testing.assert_allclose(one["rates"], [warm, warm, half, [0.2] * 4, [0.4, 0.6, 0.8, 1.0]], rtol=1e-6)


def digits(ranks: list[int], step: int) -> tuple[Any, Any]:
    """The batches of workers in a step, one after the other."""
    random = [np.random.default_rng(100 * step + rank) for rank in ranks]
    words = np.concatenate([one.integers(0, 30, (BATCH, 5)) for one in random])
    return tf.constant(words, tf.int32), tf.constant(words.sum(1) % 4, tf.int32)


def text_model(first: str = "embedding") -> Any:
    """With an Embedding, whose gradients are IndexedSlices, or without."""
    keras.utils.set_random_seed(7)
    layers = keras.layers
    firsts = [layers.Embedding(30, 6), layers.Flatten()] if first == "embedding" else [layers.Rescaling(1 / 30), layers.Dense(6, "tanh")]
    return keras.Sequential([layers.Input((5,), dtype="int32"), *firsts, layers.Dense(4)])


def optimizer_of(name: str) -> Any:
    if name == "clipped":
        return keras.optimizers.Adam(0.01, global_clipnorm=0.3, weight_decay=0.01)
    return keras.optimizers.Adam(0.01) if name == "adam" else keras.optimizers.SGD(0.1, momentum=0.9)


def dense(optimizer: Any) -> Any:
    """An optimizer of one process that makes IndexedSlices dense, too. Adam gives other weights for sparse gradients."""
    apply = type(optimizer).apply

    class Dense(type(optimizer)):  # type: ignore[misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            return apply(self, [tf.convert_to_tensor(one) for one in grads], trainable_variables)

    optimizer.__class__ = Dense
    return optimizer


def fitted(ranks: list[int], wrap: Any, name: str, **words: Any) -> list[Any]:
    """The weights after some steps of fit on the batches of workers."""
    model = text_model("dense" if name == "clipped" else "embedding")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap(optimizer_of(name)), loss, **words)
    data = [digits(ranks, step) for step in range(STEPS)]
    dataset = tf.data.Dataset.from_tensor_slices(tuple(tf.concat(one, 0) for one in zip(*data))).batch(BATCH * len(ranks))
    model.fit(dataset, epochs=2, verbose=0)
    return list(model.get_weights())


def fit_worker(client: Client, name: str, words: dict[str, Any]) -> list[Any]:
    return fitted([client.rank], lambda one: gw.DistributedOptimizer(one, client=client, sparse_as_dense=True), name, **words)


@pytest.mark.parametrize(
    ("name", "words"),
    [("sgd", {}), ("adam", {}), ("clipped", {}), ("sgd", {"run_eagerly": True}), ("sgd", {"steps_per_execution": 3})],
    ids=["sgd", "adam", "clipped", "eagerly", "several-steps"],
)
def test_fit_learns_what_one_process_learns(name: str, words: dict[str, Any]) -> None:
    first, second = in_processes(fit_worker, name, words)
    expected = fitted([0, 1], dense, name)
    for mine, theirs, single in zip(first, second, expected):
        assert np.array_equal(mine, theirs), "workers differ"
        np.testing.assert_allclose(mine, single, rtol=1e-4, atol=1e-6)
    assert not np.allclose(expected[-1], text_model().get_weights()[-1], atol=1e-3)


def gradients_worker(client: Client) -> list[Any]:
    model = text_model()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(data: Any, labels: Any) -> Any:
        with gw.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=True, client=client) as tape:
            loss = loss_of(labels, model(data))
        return tape.gradient(loss, model.trainable_variables)

    return [[one.numpy() for one in step(*digits([client.rank], turn))] for turn in range(3)]


def test_gradients_of_a_tape_are_those_of_one_process(transport: str) -> None:
    first, second = in_processes(gradients_worker, transport=transport)
    model = text_model()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for turn, (mine, theirs) in enumerate(zip(first, second)):
        data, labels = digits([0, 1], turn)
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(data))
        for one, other, single in zip(mine, theirs, tape.gradient(loss, model.trainable_variables)):
            assert np.array_equal(one, other)
            np.testing.assert_allclose(one, tf.convert_to_tensor(single), rtol=1e-5, atol=1e-7)


def test_a_tape_keeps_the_structure_of_its_sources() -> None:
    def work(client: Client) -> None:
        variables = {"a": tf.Variable([1.0, 2.0]), "b": [tf.Variable(3.0), tf.Variable([4.0])]}
        with gw.DistributedGradientTape(tf.GradientTape(persistent=True), client=client) as tape:
            loss = tf.reduce_sum(variables["a"]) * (client.rank + 1.0) + variables["b"][0] * (client.rank + 2.0)
        got = tape.gradient(loss, variables)
        assert got["a"].numpy().tolist() == [1.5, 1.5] and got["b"][0].numpy() == 2.5 and got["b"][1] is None
        assert tape.gradient(loss, variables["a"]).numpy().tolist() == [1.5, 1.5]
        # The names of tf.Variable need not be unique, and the order of the sources is that of the names.
        names = [tf.Variable(1.0, name="same"), tf.Variable(1.0, name="same")]
        with gw.DistributedGradientTape(tf.GradientTape(), average=False, client=client) as tape:
            loss = names[0] * (client.rank + 1.0) + names[1] * 10.0
        assert [one.numpy() for one in tape.gradient(loss, names)] == [3.0, 20.0]
        assert len(tape.watched_variables()) == 2

    on_each(work)


def scaled_worker(client: Client) -> list[Any]:
    model = text_model("dense")
    scaling = keras.optimizers.LossScaleOptimizer(optimizer_of("sgd"), initial_scale=64.0)
    optimizer = gw.DistributedOptimizer(scaling, client=client)
    seen = []
    for turn in range(3):
        data, labels = digits([client.rank], turn)
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, model(data))
            # The gradients of rank 1 alone are infinite in the second step.
            scaled = optimizer.scale_loss(loss) * (float("inf") if (client.rank, turn) == (1, 1) else 1.0)
        optimizer.apply(tape.gradient(scaled, model.trainable_variables), model.trainable_variables)
        seen.append((float(optimizer.dynamic_scale), model.get_weights()[0].tolist()))
    wrong = keras.optimizers.LossScaleOptimizer(gw.DistributedOptimizer(optimizer_of("sgd"), client=client))
    model.compile(wrong, "mse")
    try:
        model.fit(digits([client.rank], 0)[0], np.zeros((BATCH, 4)), verbose=0)
    except tf.errors.InvalidArgumentError as error:
        seen.append(error.message)
    return seen


def sparse_worker(client: Client, name: str) -> list[Any]:
    return fitted([client.rank], lambda one: gw.DistributedOptimizer(one, client=client), name)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_sparse_gradients_travel_as_rows_and_do_what_they_do_in_one_process(name: str, transport: str) -> None:
    first, second = in_processes(sparse_worker, name, transport=transport)
    for mine, theirs, single in zip(first, second, fitted([0, 1], lambda one: one, name)):
        assert np.array_equal(mine, theirs), "workers differ"
        np.testing.assert_allclose(mine, single, rtol=1e-4, atol=1e-6)


def test_slices_become_dense_in_push_pull() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([2, 2]), tf.constant([3, 1]))
        assert gw.push_pull(slices, "a", client=client).numpy().tolist() == [[0.0], [0.0], [3.0]]


def test_all_workers_skip_a_step_with_an_infinite_gradient() -> None:
    first, second = in_processes(scaled_worker)
    assert first[:3] == second[:3] and [one[0] for one in first[:3]] == [64.0, 32.0, 32.0]
    assert first[0][1] == first[1][1] != first[2][1]
    for seen in (first, second):
        assert "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))" in seen[3]


def test_keras_does_not_compile_a_step_that_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        mine, plain = text_model("dense"), text_model("dense")
        optimizer = gw.DistributedOptimizer(optimizer_of("sgd"), client=client)
        # As on a machine with a GPU, where Keras compiles by default.
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [SimpleNamespace(device_type="GPU")])
        plain.compile(optimizer_of("sgd"), "mse")
        mine.compile(optimizer, "mse")
        assert plain.jit_compile is True and mine.jit_compile is False
        monkeypatch.undo()
        mine.compile(optimizer, "mse", jit_compile=True)
        with pytest.raises(tf.errors.UnimplementedError, match="jit_compile=False to tf.function or model.compile"):
            mine.fit(digits([0], 0)[0], np.zeros((BATCH, 4)), verbose=0)


BEFORE_THE_PAGE = """
import sys
import keras
import numpy as np
import tensorflow as tf
import gradwire.tensorflow as gw

gw.init()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
loss, steps = "mse", 2
data = tf.data.Dataset.from_tensor_slices((np.full((80, 3), 0.3), np.full((80, 2), 5.0))).batch(4)
"""
AFTER_THE_PAGE = """
np.savez(f"{sys.argv[1]}/{gw.rank()}.npz", step=step, loss=model.evaluate(data, verbose=0))
gw.shutdown()
"""


def test_the_page_s_lines_about_servers_run(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs/tensorflow.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    asynchronous, resumed = (one for one in blocks if "ParameterServerOptimizer" in one)
    script = tmp_path / "script.py"
    script.write_text(BEFORE_THE_PAGE + asynchronous + resumed + AFTER_THE_PAGE)
    for one in run_script(tmp_path, "shm", script):
        assert int(one["step"]) == 1 and np.isfinite(one["loss"])


def test_functions_about_the_process_can_be_sent_to_others() -> None:
    assert pickle.loads(pickle.dumps(gw.rank)) == gw.rank


def test_optimizers_that_cannot_average_are_refused() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        optimizer = gw.DistributedOptimizer(optimizer_of("sgd"), client=client)
        wrong: list[tuple[Any, dict[str, Any], str]] = [
            (optimizer, {}, "already"),
            (keras.optimizers.LossScaleOptimizer(optimizer), {}, "already"),
            (tf.Module(), {}, "is no optimizer of Keras 3"),
            (optimizer_of("sgd"), {"backward_passes_per_step": 2}, "gradient_accumulation_steps"),
            (optimizer_of("sgd"), {"compression": "fp16"}, "Compression.fp16"),
        ]
        for one, words, text in wrong:
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                gw.DistributedOptimizer(one, client=client, **words)
        assert isinstance(optimizer, keras.optimizers.SGD)
        # Another one of its class does not average.
        other = type(optimizer).from_config(optimizer.get_config())
        assert other.get_config() == optimizer.get_config()
        assert gw.DistributedOptimizer(copy.deepcopy(other), client=client) is not other


def callbacks_worker(client: Client) -> list[Any]:
    rates: list[float] = []

    class Rates(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate))

    keras.utils.set_random_seed(client.rank)
    # Not built before the first batch.
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile(gw.DistributedOptimizer(keras.optimizers.SGD(0.4), client=client), "mse")
    callbacks = gw.keras.callbacks
    history = model.fit(
        np.ones((8, 2)),
        np.full((8, 3), float(client.rank)),
        batch_size=4,
        epochs=3,
        verbose=0,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(1, client=client),
            callbacks.MetricAverageCallback(client=client),
            callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, client=client),
            Rates(),
        ],
    )
    return [model.get_weights(), history.history["loss"], rates]


def test_callbacks_broadcast_average_and_warm_up() -> None:
    first, second = in_processes(callbacks_worker)
    assert all(np.array_equal(*pair) for pair in zip(first[0], second[0])) and first[1] == second[1]
    np.testing.assert_allclose(first[2], [0.25, 0.3, 0.35, 0.4, 0.4, 0.4], rtol=1e-6)
