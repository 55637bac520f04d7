"""Gradwire for JAX: means of trees of arrays over all workers, in `jax.jit` and outside.

    import gradwire
    import gradwire.jax as gj

    client = gradwire.connect()
    parameters = gj.broadcast(client, parameters)  # rank 0's
    optimizer = optax.chain(gj.average_gradients(client), optax.adam(1e-3))

    @jax.jit
    def step(parameters, state, batch):
        gradients = jax.grad(loss)(parameters, batch)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state

Outside of `jit`, arrays on the CPU are read where they are, without a copy (DLPack). Inside, an ordered callback copies each
array once into registered memory; results are copied once, by JAX. Inside `shard_map` over several devices of a process, the shards of a
device are averaged with those of the same device of the other workers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from ._extras import require

require("gradwire.jax", "jax", needs="JAX 0.4.30 or newer", extra="jax")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from ._native import Tensor
from .client import Client, Declaration, wait_all
from .codecs import Codec
from .errors import InputError
from .optimizers import Assign, Optimizer


class Tree:
    """A tree of arrays, with one tensor per leaf. Every worker must create an identical tree, once; `like` has the structure
    and the shapes."""

    def __init__(
        self,
        client: Client,
        like: Any,
        *,
        name: str = "tree",
        optimizer: Optimizer = Assign(average=True),
        codec: Codec | None = None,
    ) -> None:
        paths, self.structure = jax.tree_util.tree_flatten_with_path(like)
        self.client = client
        self.tensors: list[Tensor] = client.declare_all(
            Declaration(name + jax.tree_util.keystr(path), np.shape(leaf), jnp.result_type(leaf), optimizer, codec, "sync", -at)
            for at, (path, leaf) in enumerate(paths)
        )
        self._forms = [(np.shape(leaf), jnp.result_type(leaf)) for _, leaf in paths]
        # Registered memory for callbacks, one of which runs at a time.
        self._rooms: list[Any] = []
        self._lock = threading.Lock()

    def init(self, tree: Any) -> None:
        """Sets the initial values. The values of rank 0 are used."""
        jax.effects_barrier()
        wait_all([self.client.init_start(*pair) for pair in self._pairs(tree)])

    def push_pull(self, tree: Any) -> Any:
        """Contributes each array, and returns the new values. With the default optimizer they are the mean over all
        workers. Inside `jax.jit` the call is part of the compiled function, and in one order with other calls."""
        if _is_traced(tree):
            return self._traced(tree)
        # Compiled functions that are still running come first.
        jax.effects_barrier()
        return self._wait([self.client.push_pull(*pair) for pair in self._pairs(tree)])

    def pull(self) -> Any:
        """Returns the current values."""
        jax.effects_barrier()
        return self._wait([self.client.pull(tensor) for tensor in self.tensors])

    def _traced(self, tree: Any) -> Any:
        leaves = self._leaves(tree)
        shapes = [jax.ShapeDtypeStruct(*form) for form in self._forms]
        # In one order on all workers: two executions at the same time would mix their rounds.
        got = io_callback(self._exchange, shapes, *leaves, ordered=True)
        return jax.tree_util.tree_unflatten(self.structure, got)

    def _exchange(self, *leaves: Any) -> list[Any]:
        """Runs in callbacks. JAX copies the results before the next one."""
        with self._lock:
            if not self._rooms:
                self._rooms = [self.client.empty(shape, dtype) for shape, dtype in self._forms]
            handles = []
            for tensor, room, leaf in zip(self.tensors, self._rooms, leaves):
                np.copyto(room, np.asarray(leaf))
                handles.append(self.client.push_pull(tensor, room, out=room))
            wait_all(handles)
            return self._rooms

    def _leaves(self, tree: Any) -> list[Any]:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        # Its stubs leave the comparison out.
        if not bool(structure == self.structure):
            raise InputError(f"the tree has structure {structure}, but was declared as {self.structure}", "wrong_tree")
        for leaf, (shape, dtype) in zip(leaves, self._forms):
            if (np.shape(leaf), jnp.result_type(leaf)) != (shape, dtype):
                raise InputError(
                    f"an array of the tree has shape {np.shape(leaf)} and type {jnp.result_type(leaf)}, and had {shape} and {dtype} before: use "
                    "another name",
                    "wrong_shape",
                )
        return leaves

    def _pairs(self, tree: Any) -> list[tuple[Tensor, Any]]:
        # Whoever waits for the computation of an array does so here, and not under a lock of ours.
        leaves = jax.block_until_ready(self._leaves(tree))  # type: ignore[no-untyped-call]
        return [(tensor, _on_cpu(leaf, dtype)) for tensor, leaf, (_, dtype) in zip(self.tensors, leaves, self._forms)]

    def _wait(self, handles: list[Any]) -> Any:
        # JAX's arrays never change, and memory of ours does: they are copies.
        arrays = [jnp.array(array, copy=True) for array in wait_all(handles)]
        return jax.tree_util.tree_unflatten(self.structure, arrays)


_lock = threading.Lock()


def _tree(client: Client, tree: Any, name: str) -> Tree:
    with _lock:
        trees: dict[str, Tree] = client.__dict__.setdefault("_jax_trees", {})
        if name not in trees:
            trees[name] = Tree(client, tree, name=name)
        return trees[name]


def push_pull(client: Client, tree: Any, *, name: str = "tree") -> Any:
    """Returns the mean of a tree of arrays over all workers, also inside `jax.jit` and `shard_map`. Trees of one name have one structure,
    and the same shapes and types."""
    axes = _manual_axes() if _is_traced(tree) else {}
    devices = math.prod(axes.values())
    if devices == 1:
        return _tree(client, tree, name).push_pull(tree)
    # One device's callbacks are in order, and those of two are not.
    trees = [_tree(client, tree, f"{name}.device{at}") for at in range(devices)]
    return jax.lax.switch(jax.lax.axis_index(tuple(axes)), [one.push_pull for one in trees], tree)


def _manual_axes() -> dict[str, int]:
    """The axes over whose devices `shard_map` has split the arrays, with their sizes."""
    mesh_of = getattr(jax.sharding, "get_abstract_mesh", None)
    if mesh_of is None:
        if jax.local_device_count() > 1:
            raise InputError(f"jax {jax.__version__} does not say whether this is inside shard_map: use 0.7 or newer, or one device", "version")
        return {}
    mesh = mesh_of()
    return {axis: mesh.shape[axis] for axis in mesh.manual_axes}


def broadcast(client: Client, tree: Any, *, name: str = "parameters") -> Any:
    """Returns the arrays of rank 0 on every worker. Every worker must call it with an identical tree, and once for each name."""
    names: set[str] = client.__dict__.setdefault("_jax_broadcasts", set())
    if name in names:
        raise InputError(f"broadcast of {name!r} was called before: use another name for other arrays", "same_name")
    names.add(name)
    arrays = Tree(client, tree, name=f"broadcast.{name}", optimizer=Assign())
    arrays.init(tree)
    return arrays.pull()


class Transformation(NamedTuple):
    """What `optax.chain` takes: optax itself is not needed."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


def average_gradients(client: Client, *, name: str = "gradients") -> Transformation:
    """Returns an optax transformation that replaces gradients by their mean over all workers. It has no state. Put it first in
    `optax.chain`."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return push_pull(client, updates, name=name), state

    return Transformation(lambda params: (), update)


def _on_cpu(leaf: Any, dtype: Any) -> Any:
    """The leaf itself if it is an array of JAX on the CPU, and else a copy there with the type that was declared."""
    if isinstance(leaf, jax.Array) and {device.platform for device in leaf.devices()} == {"cpu"}:
        return leaf
    return np.asarray(jax.device_get(leaf), dtype)


def _is_traced(tree: Any) -> bool:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree)):
        return True
    # Constants inside a function that is being traced.
    is_clean = getattr(jax.core, "trace_state_clean", None)
    return is_clean is not None and not is_clean()
