"""Broadcasts of tensors, optimizer state and values from one rank to all workers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

import torch

from .._native import Handle
from .._native import Tensor as Declared
from ..client import Client, Declaration, wait_all
from ..dtypes import element_of
from ..errors import InputError
from ..optimizers import Assign
from ._exchange import Named
from ._optimizer import DistributedOptimizer
from ._process import client_or_default


def broadcast_parameters(
    parameters: Mapping[str, torch.Tensor] | Named,
    root_rank: int = 0,
    prefix: str = "parameter.",
    *,
    client: Client | None = None,
) -> None:
    """Copies the tensors of `root_rank` to every worker, in place: `model.state_dict()`, or `model.named_parameters()`. Every
    worker must call it with the same names. Negative zeros become positive in a repeated broadcast, and if `root_rank` is
    not 0."""
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    named = {name: one for name, one in pairs if isinstance(one, torch.Tensor) and one.numel()}
    _broadcast([(prefix + name, one) for name, one in named.items()], client_or_default(client), root_rank)


def _broadcast(named: list[tuple[str, torch.Tensor]], client: Client, root: int) -> None:
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < client.workers:
        raise InputError(f"invalid root_rank {root!r}: pass a worker's rank from 0 to {client.workers - 1}", "root_rank")
    declarations, memories = [], []
    for name, one in named:
        # Types that do not travel go as their bytes.
        plain = one.detach().to("cpu").contiguous().reshape(-1)
        if not _travels(plain.dtype):
            plain = plain.view(torch.uint8)
        memories.append(plain.clone())
        declarations.append(Declaration(name, plain.numel(), plain.dtype, Assign(), mode="sync", backup_workers=0))
    # What was declared stays so, and an initial value, once set: a repeated broadcast is a round, to which the others
    # contribute zeros.
    known: dict[Declaration, Declared] = vars(client).setdefault("_broadcast", {})
    new = [one for one in declarations if one not in known]
    known.update(zip(new, client.declare_all(new)))
    first = set() if root else set(new)
    handles: list[Handle] = []
    for declaration, memory in zip(declarations, memories):
        if declaration in first:
            handles.append(client.init_start(known[declaration], memory))
        else:
            mine = memory if client.rank == root else torch.zeros_like(memory)
            handles.append(client.push(known[declaration], mine))
    # A pull that overtook an initial value would bring zeros.
    wait_all(handles)
    wait_all([client.pull(known[one], out=memory) for one, memory in zip(declarations, memories)])
    with torch.no_grad():
        for (_, one), memory in zip(named, memories):
            one.copy_(memory.view(one.dtype).view(one.shape))


def _travels(dtype: torch.dtype) -> bool:
    try:
        element_of(dtype)
    except InputError:
        return False
    return True


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer | DistributedOptimizer,
    root_rank: int = 0,
    prefix: str = "optimizer.",
    *,
    client: Client | None = None,
) -> None:
    """Copies the optimizer state of `root_rank` to every worker: tensors, counters, and the options of parameter groups.
    Options must be JSON values; received data is never executed."""
    client, is_root = client_or_default(client), client_or_default(client).rank == root_rank
    inner = optimizer.optimizer if isinstance(optimizer, DistributedOptimizer) else optimizer
    mine = inner.state_dict()
    plan = broadcast_object(_described(mine) if is_root else None, root_rank, prefix + "plan", client=client)
    tensors: dict[str, torch.Tensor] = {}
    for path, shape, dtype in plan["tensors"]:
        there = _at(mine["state"], path) if is_root else None
        tensors[path] = torch.empty(shape, dtype=getattr(torch, dtype)) if there is None else there.detach().cpu().clone()
    names = sorted(path for path, one in tensors.items() if one.numel())
    _broadcast([(f"{prefix}{plan['tag']}.{path}", tensors[path]) for path in names], client, root_rank)
    state: dict[Any, dict[str, Any]] = {}
    for path, value in [*plan["values"], *tensors.items()]:
        index, _, name = path.partition(".")
        state.setdefault(int(index), {})[name] = value
    inner.load_state_dict({"state": state, "param_groups": plan["groups"]})


def _described(state: dict[str, Any]) -> dict[str, Any]:
    tensors: list[Any] = []
    values: list[Any] = []
    for index, entry in state["state"].items():
        for name, value in entry.items():
            path = f"{index}.{name}"
            if isinstance(value, torch.Tensor):
                tensors.append((path, list(value.shape), str(value.dtype).rpartition(".")[2]))
            else:
                values.append((path, value))
    # Other shapes are other tensors for the servers.
    tag = hashlib.sha256(json.dumps(tensors).encode()).hexdigest()[:16]
    return {"tensors": tensors, "values": values, "groups": state["param_groups"], "tag": tag}


def _at(state: dict[Any, Any], path: str) -> torch.Tensor:
    index, _, name = path.partition(".")
    return cast(torch.Tensor, state[int(index)][name])


def broadcast_object(value: Any, root_rank: int = 0, name: str = "object", *, client: Client | None = None) -> Any:
    """Returns the value of `root_rank` on every worker. It must be a JSON value."""
    client = client_or_default(client)
    text = json.dumps(value).encode() if client.rank == root_rank else b""
    length = torch.tensor([len(text)])
    _broadcast([(f"{name}.length", length)], client, root_rank)
    size = int(length[0])
    # Room is for powers of two, so that few tensors are declared for values whose length changes.
    room = torch.zeros(1 << max(6, size.bit_length()), dtype=torch.uint8)
    if client.rank == root_rank:
        room[:size] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    _broadcast([(f"{name}.{room.numel()}", room)], client, root_rank)
    return json.loads(room[:size].numpy().tobytes())
