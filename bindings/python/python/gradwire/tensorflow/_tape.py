"""A gradient tape whose gradients are means over all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..client import Client
from ._compression import Compression
from ._gather import gather_all
from ._ops import name_of, push_pull_all
from ._process import client_or_default


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
        # Of the last layers first: backward computes them first.
        found.reverse()
        sparse = [one for one in found if isinstance(one[1], tf.IndexedSlices) and not self.sparse_as_dense]
        at_sparse = {at for at, _, _ in sparse}
        dense = [one for one in found if one[0] not in at_sparse]
        results = list(gradients)
        for some, average in ((dense, self._means), (sparse, self._gathered)):
            if some:
                places, tensors, called = zip(*some)
                for at, mean in zip(places, average(tensors, called)):
                    results[at] = mean
        return results

    def _means(self, tensors: Sequence[Any], names: Sequence[str]) -> list[Any]:
        return push_pull_all(tensors, names, average=self.average, compression=self.compression, client=self.client)

    def _gathered(self, slices: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """The rows of all workers, of sparse gradients. Whoever applies them adds those of the same index."""
        tensors = [part for one in slices for part in (one.values, one.indices)]
        gathered = gather_all(tensors, [f"{name}.{part}" for name in names for part in ("values", "indices")], self.client)
        made = []
        for one, values, indices in zip(slices, gathered[::2], gathered[1::2]):
            if self.average:
                values = values / tf.cast(client_or_default(self.client).workers, values.dtype)
            made.append(tf.IndexedSlices(values, indices, one.dense_shape))
        return made


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
    manager too. Tensors are named by `prefix`, and by the names and shapes of the sources. Sparse gradients
    (`tf.IndexedSlices`) travel as rows and indices, or as dense tensors with `sparse_as_dense=True`."""

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
