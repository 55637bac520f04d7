"""A gradient tape whose gradients are means over all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..client import Client
from ._compression import Compression
from ._ops import name_of, push_pull_all


@dataclass(frozen=True)
class Averaging:
    """How gradients are averaged."""

    prefix: str
    compression: Any
    sparse_as_dense: bool
    average: bool
    client: Client | None

    def __deepcopy__(self, memo: Any) -> Averaging:
        # A client is not copied.
        return self

    def means(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of variables, averaged. None stays None, which must be so on all workers."""
        names = names_of(self.prefix, variables)
        found = [(at, one, name) for at, (one, name) in enumerate(zip(gradients, names)) if one is not None]
        for _, gradient, name in found:
            if isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense:
                raise tf.errors.InvalidArgumentError(
                    None,
                    None,
                    f"the gradient {name!r} is sparse (tf.IndexedSlices), and only dense tensors are averaged: pass sparse_as_dense=True. "
                    "Adam and some other optimizers of Keras update sparse gradients in another way than dense ones",
                )
        results = list(gradients)
        if found:
            # Of the last layers first: backward computes them first.
            places, some, of_some = zip(*reversed(found))
            means = push_pull_all(some, of_some, average=self.average, compression=self.compression, client=self.client)
            for at, mean in zip(places, means):
                results[at] = mean
        return results


def names_of(prefix: str, variables: Sequence[Any]) -> list[str]:
    """The names of the tensors of variables, by their paths and shapes."""
    names: dict[str, None] = {}
    for variable in variables:
        # Two models may have variables of the same names. Their operations follow each other in the same order on all workers, so they
        # may share a tensor, but not one of another shape.
        shape = "x".join(map(str, variable.shape))
        name, turn = f"{prefix}{name_of(variable)}.{shape}", 1
        while name in names:
            turn += 1
            name = f"{prefix}{name_of(variable)}({turn}).{shape}"
        names[name] = None
    return list(names)


class DistributedGradientTape:
    """Wraps a `tf.GradientTape`: `gradient` returns means over all workers. Everything else belongs to the wrapped tape, as a context
    manager too. Tensors are named by `prefix`, and by the names and shapes of the sources. `tf.IndexedSlices` need `sparse_as_dense=True`."""

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        average: bool = True,
        *,
        prefix: str = "tape.",
        client: Client | None = None,
    ) -> None:
        self._tape = gradtape
        self._averaging = Averaging(prefix, compression, sparse_as_dense, average, client)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **words: Any) -> Any:
        """The gradients of `target` with respect to `sources`, averaged over all workers, in the structure of `sources`."""
        gradients = self._tape.gradient(target, sources, output_gradients, **words)
        variables = tf.nest.flatten(sources)
        flat = [gradients] if len(variables) == 1 and not tf.nest.is_nested(sources) else _flat(gradients)
        means = self._averaging.means(flat, variables)
        return tf.nest.pack_sequence_as(sources, means)


def _flat(gradients: Any) -> list[Any]:
    """Without looking into IndexedSlices."""
    return list(tf.nest.flatten(gradients, expand_composites=False))
