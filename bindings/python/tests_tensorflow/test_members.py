"""Tensors from one worker to another: eagerly, in graphs, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import gradwire.tensorflow as gw
from conftest import in_processes, on_each
from gradwire.client import Client


def test_a_tensor_is_received_as_it_was_sent(transport: str) -> None:
    tensors = [tf.constant([[1.0, -0.0], [float("nan"), 4.0]]), tf.constant(3, tf.int64), tf.cast([1.5, 2.5], tf.bfloat16)]

    def work(client: Client) -> list[Any]:
        got = []
        for step, tensor in enumerate(tensors):
            if client.rank == 0:
                gw.send(tensor, 1, f"tensor {step}", client=client)
            else:
                got.append(gw.recv(0, f"tensor {step}", tensor.dtype, tensor.shape, client=client))
        return got

    _, got = on_each(work, transport=transport)
    for one, tensor in zip(got, tensors):
        assert (one.dtype, one.shape) == (tensor.dtype, tensor.shape) and one.numpy().tobytes() == tensor.numpy().tobytes()


def pipeline_worker(client: Client, threads: int) -> list[list[float]]:
    """Activations go to the next worker, gradients come back: two stages of one model, in one graph each, with means between."""
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    weight = tf.Variable(2.0 + client.rank)

    @tf.function
    def step(inputs: Any) -> Any:
        if client.rank == 0:
            outputs = weight * inputs
            gw.send(outputs, 1, "activations", client=client)
            upstream = gw.recv(1, "gradients", tf.float32, [None], client=client)
            gradient = tf.reduce_sum(upstream * inputs)
        else:
            activations = gw.recv(0, "activations", tf.float32, [None], client=client)
            with tf.GradientTape() as tape:
                tape.watch(activations)
                loss = tf.reduce_sum(tf.square(weight * activations))
            upstream, gradient = tape.gradient(loss, [activations, weight])
            gw.send(upstream, 0, "gradients", client=client)
        return gw.push_pull(gradient, "gradient", average=False, client=client)

    seen = [float(step(tf.range(1.0, 2.0 + at))) for at in range(4)]
    return [seen, [float(weight)]]


@pytest.mark.parametrize("threads", [1, 2])
def test_two_stages_of_a_model_have_the_gradients_of_one_process(threads: int) -> None:
    results = in_processes(pipeline_worker, threads)
    first, second = tf.Variable(2.0), tf.Variable(3.0)
    for at in range(4):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(second * first * tf.range(1.0, 2.0 + at)))
        expected = sum(float(one) for one in tape.gradient(loss, [first, second]))
        assert np.allclose([result[0][at] for result in results], expected, rtol=1e-5)


def test_another_dtype_or_shape_is_an_error_of_both() -> None:
    def work(client: Client) -> None:
        if client.rank == 0:
            with pytest.raises(tf.errors.InvalidArgumentError, match="send of 'x' to worker 1: worker 1 refused it: recv of 'x'"):
                gw.send(tf.zeros((2, 3)), 1, "x", client=client)
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="recv of 'x' from worker 0: the array has dtype float32 and shape .2, 3., but"):
                gw.recv(0, "x", tf.float32, [2, None, 1], client=client)

    on_each(work)


def test_what_cannot_be_sent_or_received_is_told() -> None:
    def work(client: Client) -> None:
        if client.rank:
            return
        with pytest.raises(tf.errors.InvalidArgumentError, match="there is no such worker: pass a rank from 0 to 1"):
            gw.send(tf.zeros(3), 2, "x", client=client)
        with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported dtype"):
            gw.send(tf.constant("text"), 1, "x", client=client)
        with pytest.raises(tf.errors.UnimplementedError, match="recv of 'x' cannot be compiled by XLA.*jit_compile=False"):
            tf.function(lambda: gw.recv(1, "x", client=client), jit_compile=True)()

    on_each(work)
