"""Broadcasts of tensors, optimizer state and values from one rank to all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._native import Handle
from .._native import Tensor as Declared
from ..client import Client, Declaration, wait_all
from ..errors import InputError, OperationError
from ..optimizers import Assign
from ._encoding import decode, encode, tensors_of
from ._exchange import Named, follow, refuse_shard
from ._process import client_or_default
from ._state import state_of


def broadcast_parameters(
    parameters: Mapping[str, torch.Tensor] | Named,
    root_rank: int = 0,
    prefix: str = "parameter.",
    *,
    client: Client | None = None,
) -> None:
    """Copies the tensors of `root_rank` to every worker, in place: `model.state_dict()`, or `model.named_parameters()`. Every
    worker must call it with the same names. Every bit is kept."""
    broadcast(tensors_in(parameters, prefix), client_or_default(client), root_rank)


def tensors_in(parameters: Mapping[str, torch.Tensor] | Named, prefix: str) -> list[tuple[str, torch.Tensor]]:
    """The tensors that have elements, by their full names."""
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    named = {name: one for name, one in pairs if isinstance(one, torch.Tensor) and one.numel()}
    return [(prefix + name, one) for name, one in named.items()]


def broadcast(
    named: list[tuple[str, torch.Tensor]], client: Client, root: int, initial: bool = True, check: Callable[[], None] | None = None
) -> None:
    """Copies the tensors of `root` to all workers, in place. `initial`: the first one sets initial values. Otherwise all are rounds, in
    which workers that were restarted can take part. `check` is called after the values have come; if it raises, no tensor is changed."""
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < client.workers:
        raise InputError(f"invalid root_rank {root!r}: pass a worker's rank from 0 to {client.workers - 1}", "root_rank")
    if not named:
        return
    declarations, memories = [], []
    for name, one in named:
        refuse_shard(name, one)
        plain = bits_of(one)
        memories.append(plain.clone())
        # Tensors of one name may have several sizes, as those of two models.
        full = f"{name}.{plain.numel() * plain.element_size()}"
        declarations.append(Declaration(full, plain.numel(), plain.dtype, Assign(), mode="sync", backup_workers=0))
    # What was declared stays so, and an initial value, once set: a repeated broadcast is a round, to which the others
    # contribute zeros.
    known = state_of(client).broadcasts
    # Of its own: threads may broadcast at the same time, each from another root.
    roots = _roots(named)
    new = [one for one in [*declarations, roots] if one not in known]
    known.update(zip(new, client.declare_all(new)))
    # The first broadcast of a worker that was restarted need not be that of the others, who then have had rounds of `roots`.
    rounds = {one: follow(client, known[one]) for one in new}
    first = set(new) if initial and root == 0 and rounds.get(roots) == 0 else set()
    handles: list[Handle] = []
    for declaration, memory in zip(declarations, memories):
        if declaration in first:
            handles.append(client.init_start(known[declaration], memory))
        else:
            mine = memory if client.rank == root else torch.zeros_like(memory)
            handles.append(client.push(known[declaration], mine))
    # A pull that overtook an initial value would bring zeros.
    wait_all(handles)
    _check_root(client, root, known[roots])
    wait_all([client.pull(known[one], out=memory) for one, memory in zip(declarations, memories)])
    if check is not None:
        check()
    with torch.no_grad():
        for (_, one), memory in zip(named, memories):
            one.copy_(from_bits(memory, one))


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor, as integers in the memory of the CPU: sums of floats would lose the sign of zeros."""
    plain = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return plain.view(torch.int32) if plain.numel() % 4 == 0 else plain


def from_bits(bits: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor that has these bits."""
    return bits.view(torch.uint8).view(like.dtype).view(like.shape)


def is_over(named: list[tuple[str, torch.Tensor]], client: Client) -> bool:
    """In a worker that was restarted: whether the others have had the first broadcast of these tensors."""
    return bool(named) and client.resume([client.declare_all([_roots(named)])[0]]) > 0


def _roots(named: list[tuple[str, torch.Tensor]]) -> Declaration:
    """Counts the roots of a broadcast."""
    return Declaration(f"{named[0][0]}.roots", 1, "int32", Assign(), mode="sync", backup_workers=0)


def _check_root(client: Client, root: int, roots: Declared) -> None:
    """Raises an error if `root` has not sent the values of this broadcast. If a worker leaves, the others continue without it, and would
    take zeros, or values of their own, for those of the root. The root calls this after its values have been received."""
    count = client.push_pull(roots, torch.tensor([int(client.rank == root)], dtype=torch.int32)).wait()
    if not count.tolist()[0]:
        raise OperationError(f"broadcast from rank {root} failed: worker {root} has left the job before it sent its values", "root_left")


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    prefix: str = "optimizer.",
    *,
    client: Client | None = None,
) -> None:
    """Copies the optimizer state of `root_rank` to every worker: tensors, counters, and the options of parameter groups, with their
    types. If the state has something that does not travel (see `broadcast_object`), every worker gets the InputError."""
    client = client_or_default(client)
    mine = optimizer.state_dict() if client.rank == root_rank else None
    optimizer.load_state_dict(broadcast_value(mine, root_rank, prefix, client, "the optimizer's state"))


def broadcast_object(value: Any, root_rank: int = 0, name: str = "object", *, client: Client | None = None) -> Any:
    """Returns the value of `root_rank` on every worker, with its types: None, numbers, strings, bytes, lists, tuples, sets, dictionaries,
    tensors, and numbers and arrays of numpy, in any combination. Received data is never executed. If the value has something else in
    it, every worker gets the InputError."""
    return broadcast_value(value, root_rank, f"{name}.", client_or_default(client), "the value")


def broadcast_value(value: Any, root: int, prefix: str, client: Client, what: str, initial: bool = True) -> Any:
    """The value of `root`. `what` names it in errors; `initial` as in `broadcast`."""
    is_root, tensors, refused = client.rank == root, [], ""
    text = b""
    if is_root:
        try:
            encoded, tensors = encode(value, what)
            text = encoded.encode()
        except InputError as error:
            refused = str(error)
            text = refused.encode()
    length = torch.tensor([len(text), bool(refused)])
    broadcast([(prefix + "length", length)], client, root, initial)
    size, is_refused = length.tolist()
    # Room is for powers of two, so that few tensors are declared for values whose length changes.
    room = torch.zeros(1 << max(6, size.bit_length()), dtype=torch.uint8)
    if is_root:
        room[:size] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    broadcast([(prefix + "text", room)], client, root, initial)
    received = room[:size].numpy().tobytes().decode()
    if is_refused:
        raise InputError(f"broadcast from rank {root}: {received}", "object")
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in tensors_of(received)]
    copies = [one.clone() for one in tensors]
    broadcast([(f"{prefix}{at}", one) for at, one in enumerate(copies) if one.numel()], client, root, initial)
    return decode(received, iter(copies))
