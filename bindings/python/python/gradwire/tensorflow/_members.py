"""Tensors from one worker to another. They are those of `Client.send` and `Client.recv`, in the order of the program."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..client import Client
from ._graph import run_in_order
from ._process import client_or_default


def send(tensor: Any, to: int, name: str, *, client: Client | None = None) -> None:
    """Sends a tensor to worker `to`, which receives it with `recv` under the same name, eagerly or inside a tf.function. Ends when it was
    received, after `deadlines.busy_ms` at most; so two workers must not both send first. Gradients are not propagated."""

    def work(array: Any) -> list[Any]:
        client_or_default(client).send(array, to, name)
        return []

    run_in_order(work, [tf.convert_to_tensor(tensor)], [], what=f"send of {name!r}")


def recv(source: int, name: str, dtype: Any = tf.float32, shape: Any = None, *, client: Client | None = None) -> Any:
    """Returns the next tensor that worker `source` has sent under this name, and waits for it, for at most `deadlines.busy_ms`. Dimensions
    of `shape` may be unknown (None). If dtype or shape differ from the given ones, both workers get an error."""
    like = tf.TensorSpec(shape, dtype)
    lengths = None if like.shape.rank is None else like.shape.as_list()

    def work() -> list[Any]:
        return [client_or_default(client).recv(source, name, like.dtype.name, lengths)]

    [result] = run_in_order(work, [], [like], what=f"recv of {name!r}")
    return result
