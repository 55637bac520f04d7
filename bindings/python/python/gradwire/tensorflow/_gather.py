"""Tensors of all workers after one another, and with it means of sparse gradients. They are sums: each worker adds its rows to zeros of the
length of all, so there is no other way for data than that of `push_pull`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..client import Client
from . import _native_ops
from ._errors import as_tensorflow_errors
from ._ops import push_pull_all, sums_of_any_length, unnamed
from ._process import client_or_default

# All 8-bit integers can count so many workers.
_COUNTED_WORKERS_MAX = 127


def allgather(tensor: Any, name: str | None = None, *, client: Client | None = None) -> Any:
    """Returns the tensors of all workers after one another along the first dimension, in the order of ranks. First dimensions may
    differ, and may be 0; the other ones are the same on all workers. Each worker sends and receives as many bytes as the result has.
    Gradients are not propagated, and -0.0 becomes 0.0. A `tf.function` keeps the rank and the number of workers that it was traced with.
    Without a name, the tensor is named by its dtype and its other dimensions, and inside a tf.function also by its number in it."""
    tensor = tf.convert_to_tensor(tensor)
    # First dimensions differ between workers, so they are no part of the name.
    name = f"{name}.gathered" if name else unnamed("allgather", tensor, tensor.shape[1:] if tensor.shape.rank else None)
    [result] = gather_all([tensor], [name], client)
    return result


def gather_all(tensors: Sequence[Any], names: Sequence[str], client: Client | None) -> list[Any]:
    """Like `allgather` for several tensors, which are in flight at the same time."""
    if not _native_ops.are_used():
        raise tf.errors.UnimplementedError(
            None, None, f"allgather of tensor {names[0]!r} needs native operations, which cannot be used here: pass sparse_as_dense=True for gradients"
        )
    for tensor, name in zip(tensors, names):
        if not tensor.shape.rank:
            raise tf.errors.InvalidArgumentError(
                None, None, f"allgather of tensor {name!r}: it needs at least one dimension, and a known rank: pass tensor[None], or use tf.ensure_shape"
            )
    with as_tensorflow_errors():
        member = client_or_default(client)
    mine = tf.stack([(tf.shape(tensor, tf.int64)[0], _form_of(tensor)) for tensor in tensors])
    # For each worker: the number of rows that it has of each tensor, and the form of a row.
    table = tf.one_hot(member.rank, member.workers, dtype=tf.int64)[:, None, None] * mine
    [of_all] = push_pull_all([table], [f"{names[0]}.rows.{len(tensors)}"], average=False, client=client)
    lengths, forms = of_all[:, :, 0], of_all[:, :, 1]
    text = f"allgather of tensor {names[0]!r}: tensors of other workers have other dimensions than the first one, or a worker has left"
    are_same = tf.debugging.Assert(tf.reduce_all(forms == mine[:, 1]), [text, forms])
    with tf.control_dependencies([] if are_same is None else [are_same]):
        spread = [_spread(tensor, lengths[:, at], member.rank) for at, tensor in enumerate(tensors)]
    sums = sums_of_any_length(spread, names, client)
    return [tf.stop_gradient(_checked(one, member.workers, name)) for one, name in zip(sums, names)]


def _form_of(tensor: Any) -> Any:
    """A number for the dimensions of a row."""
    form = tf.constant(1, tf.int64)
    for length in tf.unstack(tf.shape(tensor, tf.int64)[1:], num=tensor.shape.rank - 1):
        form = (form * 1_000_003 + length) % (2**31 - 1)
    return form


def _spread(tensor: Any, lengths: Any, rank: int) -> Any:
    """The rows of this worker among zeros for the rows of all, and one row of ones."""

    def filled(value: int, rows: Any) -> Any:
        return tf.fill(tf.concat([[rows], tf.shape(tensor, tf.int64)[1:]], axis=0), tf.cast(value, tensor.dtype))

    before, after = tf.reduce_sum(lengths[:rank]), tf.reduce_sum(lengths[rank + 1 :])
    return tf.concat([filled(0, before), tensor, filled(0, after), filled(1, tf.constant(1, tf.int64))], axis=0)


def _checked(gathered: Any, workers: int, name: str) -> Any:
    """Without the last row, which counts the workers that have sent theirs."""
    rows = gathered[:-1]
    if workers > _COUNTED_WORKERS_MAX:
        return rows
    counted = tf.cast(tf.reshape(gathered[-1], [-1]), tf.int64)
    text = f"allgather of tensor {name!r}: a worker has left the job before it sent its rows"
    are_all = tf.debugging.Assert(tf.reduce_all(counted == workers), [text])
    with tf.control_dependencies([] if are_all is None else [are_all]):
        return tf.identity(rows)
