"""The six models of the paper's table 2: what the graph decides about their tensors. And what cannot be a part of a model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import gradwire
import gradwire.tensorflow as gw
from gradwire import _native
from gradwire.tensorflow import _native_ops

BENCHMARK = Path(__file__).parents[1] / "benches/tensorflow_servers.py"
# Keras' Inception-v3 has no auxiliary classifier, with which the paper counts 196.
TENSORS = {"alexnet": 16, "inception": 190, "vgg16": 32, "lstm": 14, "gru": 11, "fcn5": 10}


def elements_of(model: str) -> list[int]:
    """Those of the benchmark, a thousandth of each tensor."""
    spec = importlib.util.spec_from_file_location("tensorflow_servers", BENCHMARK)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    return [elements // 1000 + 1 for elements in benchmark.MODELS[model][0]()]


@pytest.mark.parametrize("model", TENSORS)
def test_all_tensors_of_a_model_are_static(model: str) -> None:
    elements = elements_of(model)
    names = [str(at) for at in range(len(elements))]
    with gradwire.launch() as cluster, cluster.connect() as client:

        @tf.function
        def step(value: Any) -> Any:
            return gw.push_pull_all([tf.fill([one], value) for one in elements], names, client=client)

        for turn in range(2):
            assert all(bool(tf.reduce_all(one == float(turn))) for one in step(tf.constant(float(turn))))
        table = gw.report(client)
    assert len(table) == TENSORS[model] and [one.shape for one in table] == [(count,) for count in elements]
    assert all(one.is_static and (one.operations, one.copies_in, one.copies_out) == (2, 2, 0) for one in table)


def test_a_training_step_cannot_be_saved(tmp_path: Path) -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        module = tf.Module()
        module.step = tf.function(lambda rows: gw.push_pull(rows, "rows", client=client), input_signature=[tf.TensorSpec([2])])
        module.step(tf.ones(2))
        with pytest.raises(AssertionError, match="gradwire_order"):
            tf.saved_model.save(module, str(tmp_path / "saved"))


def test_a_release_without_a_function_of_the_interface_gets_python_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = [*_native.tensorflow_functions(), "TF_NoSuchFunction"]
    monkeypatch.setattr(_native, "tensorflow_functions", lambda: functions)
    monkeypatch.setattr(_native_ops, "_is_tried", False)
    # It is set to the reason, and is to be as it was after this test.
    monkeypatch.setattr(_native_ops, "_why_not", None)
    with gradwire.launch() as cluster, cluster.connect() as client:
        with pytest.warns(UserWarning, match="missing in TensorFlow .*TF_NoSuchFunction"):
            assert gw.push_pull(tf.ones(3), "a", client=client).numpy().tolist() == [1.0] * 3
        with pytest.raises(tf.errors.UnimplementedError):
            gw.allgather(tf.ones(3), "b", client=client)
