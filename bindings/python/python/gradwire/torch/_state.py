"""What this package keeps with a client, so that it ends with the client. Owns no rules: each part belongs to the module that uses it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._native import Tensor
from ..client import Client, Declaration

if TYPE_CHECKING:
    from ._exchange import Exchange
    from ._join import Enrolled, Joining
    from ._model import Order


@dataclass
class Names:
    """The names of `push_pull` that are in use."""

    exchanges: dict[tuple[str, bool], Exchange] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    # How many operations without a name there were, by what they are of.
    unnamed: Counter[str] = field(default_factory=Counter)
    # Declaring and beginning: an exchange has one operation under way.
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class State:
    """What this package keeps with a client."""

    names: Names = field(default_factory=Names)
    # The tensors of broadcasts and of collective operations.
    broadcasts: dict[Declaration, Tensor] = field(default_factory=dict)
    collectives: dict[str, Tensor] = field(default_factory=dict)
    # The prefixes of wrappers.
    prefixes: set[str] = field(default_factory=set)
    # By prefix: the wrappers whose rounds `join` takes part in, in the order of their construction.
    uneven: dict[str, Enrolled] = field(default_factory=dict)
    # Set from the moment at which this worker has joined until all have.
    joining: Joining | None = None
    # Whether one of the wrappers in torch's context `Join` has joined for all of them.
    has_joined: bool = False
    # The order of the wrapped models, from the first one on.
    order: Order | None = None
    # Whether `resume` was called, and whether it was called in a worker that was restarted.
    resumes: bool = False
    follows: bool = False


def state_of(client: Client) -> State:
    """The state of this package for a client."""
    state: State = vars(client).setdefault("_torch", State())
    return state
