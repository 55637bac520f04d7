"""Tensors of all workers after one another, and with it means of sparse gradients. They are sums: each worker adds its rows to zeros of the
length of all, so there is no other way for data than that of `push_pull`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..client import Client
from ._errors import as_tensorflow_errors
from ._ops import push_pull_all, sums_of_any_length, unnamed
from ._process import client_or_default


def allgather(tensor: Any, name: str | None = None, *, client: Client | None = None) -> Any:
    """Returns the tensors of all workers after one another along the first dimension, in the order of ranks. First dimensions may
    differ, and may be 0; the other ones are the same on all workers. Each worker sends and receives as many bytes as the result has.
    Gradients are not propagated."""
    [result] = gather_all([tf.convert_to_tensor(tensor)], [name], client)
    return result


def gather_all(tensors: list[Any], names: list[str | None], client: Client | None) -> list[Any]:
    """Like `allgather` for several tensors, which are in flight at the same time."""
    for tensor in tensors:
        if tensor.shape.rank == 0:
            raise tf.errors.InvalidArgumentError(None, None, "allgather needs a tensor with at least one dimension: pass tensor[None]")
    if not tensors:
        return []
    called = [f"{name}.gathered" if name else unnamed("allgather", tensor) for name, tensor in zip(names, tensors)]
    with as_tensorflow_errors():
        member = client_or_default(client)
    mine = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in tensors])
    # One row for each worker: the number of rows that it has of each tensor.
    table = tf.one_hot(member.rank, member.workers, dtype=tf.int64)[:, None] * mine
    [lengths] = push_pull_all([table], [f"{called[0]}.rows.{len(tensors)}"], average=False, client=client)
    spread = [_spread(tensor, lengths[:, at], member.rank) for at, tensor in enumerate(tensors)]
    sums = sums_of_any_length(spread, called, client)
    # A tensor without elements cannot be sent: all have a row of zeros at the end.
    return [tf.stop_gradient(one[:-1]) for one in sums]


def _spread(tensor: Any, lengths: Any, rank: int) -> Any:
    """The rows of this worker among zeros for the rows of all, and one row more."""
    before, after = tf.reduce_sum(lengths[:rank]), tf.reduce_sum(lengths[rank + 1 :]) + 1
    rest = tensor.shape.rank - 1
    paddings = tf.concat([[[before, after]], tf.zeros((rest, 2), tf.int64)], axis=0)
    return tf.pad(tensor, paddings)
