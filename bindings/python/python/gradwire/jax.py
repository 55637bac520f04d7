"""Gradwire for JAX: trees of arrays, read without a copy (DLPack). Arrays must be on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
            Declaration(name + jax.tree_util.keystr(path), np.shape(leaf), np.asarray(leaf).dtype, optimizer, codec, "sync", -at)
            for at, (path, leaf) in enumerate(paths)
        )

    def init(self, tree: Any) -> None:
        """Sets the initial values. The values of rank 0 are used."""
        wait_all([self.client.init_start(*pair) for pair in self._pairs(tree)])

    def push_pull(self, tree: Any) -> Any:
        """Contributes each array, and returns the new values. With the default optimizer they are the mean over all
        workers."""
        return self._wait([self.client.push_pull(*pair) for pair in self._pairs(tree)])

    def pull(self) -> Any:
        """Returns the current values."""
        return self._wait([self.client.pull(tensor) for tensor in self.tensors])

    def _pairs(self, tree: Any) -> list[tuple[Tensor, Any]]:
        leaves, structure = jax.tree_util.tree_flatten(tree)
        # Its stubs leave the comparison out.
        if not bool(structure == self.structure):
            raise InputError(f"the tree has structure {structure}, but was declared as {self.structure}", "wrong_tree")
        # Whoever waits for the computation of an array does so here, and not under a lock of ours.
        return list(zip(self.tensors, jax.block_until_ready(leaves)))  # type: ignore[no-untyped-call]

    def _wait(self, handles: list[Any]) -> Any:
        # JAX's arrays never change, and memory of ours does: they are copies.
        arrays = [jnp.array(array, copy=True) for array in wait_all(handles)]
        return jax.tree_util.tree_unflatten(self.structure, arrays)


def push_pull(client: Client, tree: Any, *, name: str = "tree") -> Any:
    """Returns the mean of a tree of arrays over all workers."""
    trees: dict[str, Tree] = client.__dict__.setdefault("_jax_trees", {})
    if name not in trees:
        trees[name] = Tree(client, tree, name=name)
    return trees[name].push_pull(tree)
