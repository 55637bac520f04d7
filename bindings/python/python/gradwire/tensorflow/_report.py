"""Which tensors native operations exchange, and how: what the shapes of the graph decided, and how often tensors were copied."""

from __future__ import annotations

from typing import NamedTuple

from ..client import Client
from ._errors import as_tensorflow_errors
from ._exchange import Placed, state_of


class TensorReport(NamedTuple):
    """A tensor that native operations have exchanged."""

    name: str
    #: What the servers do with it: "mean", "sum", or "parameters" (`ParameterServerOptimizer`).
    rule: str
    #: In the graph that used it first. None is a dimension that is unknown there; None instead of a shape, if its rank is unknown, too.
    shape: tuple[int | None, ...] | None
    dtype: str
    #: The shape is known in the graph, and so the tensor has a place of exactly its length. Otherwise the length of each round is its own.
    is_static: bool
    #: How contributions travel: "slot", "static", "rendezvous-read" or "rendezvous-write".
    placement: str
    operations: int
    #: Copies from TensorFlow's memory to registered memory, and from there to TensorFlow's.
    copies_in: int
    copies_out: int


class Report(list[TensorReport]):
    """One entry for each tensor. As a string, a table."""

    def __str__(self) -> str:
        head = ("tensor", "rule", "shape", "dtype", "shape is", "placement", "operations", "copies in", "copies out")
        rows = [head, *map(_row, self)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


def report(client: Client | None = None) -> Report:
    """Reports for each tensor that native operations have exchanged: its shape in the graph, whether that is static or dynamic, how it
    travels, and how often it was copied. A dynamic tensor has an entry for each power of two of elements that it has needed. The
    lengths that workers compare are tensors, too. Broadcasts are not in it."""
    with as_tensorflow_errors():
        state = state_of(client)
        with state.lock:
            placed = [*state.placed.values(), *state.parameters.values()]
        return Report(map(_of, placed))


def _of(placed: Placed) -> TensorReport:
    exchange = placed.exchange
    return TensorReport(placed.name, placed.rule, placed.shape, placed.dtype, placed.is_static, exchange.placement, *exchange.counts)


def _row(one: TensorReport) -> tuple[str, ...]:
    lengths = "unknown" if one.shape is None else " x ".join("?" if length is None else str(length) for length in one.shape)
    kind = "static" if one.is_static else "dynamic"
    counts = (one.operations, one.copies_in, one.copies_out)
    return (one.name, one.rule, lengths or "scalar", one.dtype, kind, one.placement, *map(str, counts))
