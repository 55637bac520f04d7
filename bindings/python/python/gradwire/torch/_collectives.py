"""Operations that every worker calls: allgather, reduce and barrier. They are rounds of tensors at the servers, as averages are. Workers
first exchange what each of them is about to send, so that an error of one worker is an error of all at once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from .._native import Tensor as Declared
from ..client import Client
from ..dtypes import element_of
from ..errors import InputError
from ..optimizers import Assign
from ._exchange import MEAN, follow
from ._process import client_or_default
from ._state import state_of

# Bytes in which a worker describes what it is about to send.
_ROW_BYTES = 256


def allgather(tensor: torch.Tensor, name: str | None = None, *, client: Client | None = None) -> torch.Tensor:
    """Returns the tensors of all workers, concatenated along the first dimension in the order of ranks. Only the first dimension may differ
    between workers. Every bit is kept. Gradients are propagated: each worker gets the sum of all workers' gradients of its part. All
    workers must call it in the same order; threads that call it at the same time need names. Each worker sends and receives as many
    bytes as the result has. If one worker passes a wrong tensor, every worker gets the InputError."""
    got: torch.Tensor = _AllGather.apply(tensor, name or "allgather", client_or_default(client))  # type: ignore[no-untyped-call]
    return got


def reduce(
    tensor: torch.Tensor, root_rank: int = 0, average: bool = False, name: str | None = None, *, client: Client | None = None
) -> torch.Tensor:
    """Sums (or averages) a tensor over all workers into the tensor of `root_rank`, in place, and returns the tensor. The tensors of other
    workers keep their values. All workers must call it in the same order; threads that call it at the same time need names. If one
    worker passes a wrong tensor, or another root, every worker gets the InputError."""
    client, name = client_or_default(client), name or "reduce"
    what = f"reduce of {name!r}"
    refusal = _refusal(tensor, client, root_rank) or _unsupported(tensor)
    rows = _rows(what, {"refused": refusal} if refusal else _row(tensor, root=root_rank, average=average), f"reduce.{name}", client)
    for rank, row in enumerate(rows):
        if row != rows[0]:
            raise InputError(f"{what}: rank 0 passed {_told(rows[0])}, and rank {rank} {_told(row)}", "differs")
    if not tensor.numel():
        return tensor
    sent = tensor.detach().to("cpu").reshape(-1).clone()
    full = f"reduce.{name}.{'mean' if average else 'sum'}.{sent.numel()}.{element_of(sent.dtype)}"
    declared = _declared(client, full, sent.numel(), sent.dtype, average)
    handle = client.push(declared, sent)
    if client.rank == root_rank:
        got = torch.empty_like(sent)
        client.pull(declared, out=got).wait()
        with torch.no_grad():
            tensor.copy_(got.view(tensor.shape))
    handle.wait()
    return tensor


def barrier(name: str = "workers", *, client: Client | None = None) -> None:
    """Waits until every worker has reached the barrier of this name."""
    client_or_default(client).barrier(name)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str, client: Client) -> torch.Tensor:
        what = f"allgather of {name!r}"
        refusal = _refusal(tensor, client, 0)
        rows = _rows(what, {"refused": refusal} if refusal else _row(tensor), f"allgather.{name}", client)
        first = rows[0]
        for rank, row in enumerate(rows):
            if (row["dtype"], row["shape"][1:]) != (first["dtype"], first["shape"][1:]):
                raise InputError(
                    f"{what}: rank 0 passed {_told(first)}, and rank {rank} {_told(row)}: only the first dimension may differ", "differs"
                )
        lengths = [row["shape"][0] for row in rows]
        got = torch.empty([sum(lengths), *first["shape"][1:]], dtype=tensor.dtype)
        ctx.words = sum(lengths[: client.rank]), lengths[client.rank], tensor.shape, name, client
        if got.numel():
            bits = got.view(-1).view(torch.uint8)
            before = bits.numel() // len(got) * ctx.words[0]
            bits.copy_(_gathered(_bits(tensor), before, bits.numel(), f"allgather.{name}.bits", client))
        return got.to(tensor.device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        begin, length, shape, name, client = ctx.words
        gradient = gradients[0].detach()
        if not gradient.numel():
            return gradient.reshape(shape), None, None
        sent = gradient.to("cpu").reshape(-1)
        total = _summed(sent, f"allgather.{name}.gradient.{element_of(sent.dtype)}", client).view(gradient.shape)
        # A copy, as the sum is in memory that the next round may need.
        return total[begin : begin + length].reshape(shape).clone().to(gradient.device), None, None


def _refusal(tensor: Any, client: Client, root: Any) -> str:
    """Why the arguments of this worker are refused, or nothing."""
    if not isinstance(tensor, torch.Tensor):
        return f"a {type(tensor).__name__} is not a tensor"
    if tensor.layout != torch.strided:
        return "sparse tensors are not supported: pass tensor.to_dense()"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"unsupported device {tensor.device}: move the tensor to the CPU"
    if isinstance(root, bool) or not isinstance(root, int) or not 0 <= root < client.workers:
        return f"invalid root_rank {root!r}: pass a worker's rank from 0 to {client.workers - 1}"
    return ""


def _unsupported(tensor: torch.Tensor) -> str:
    try:
        element_of(tensor.dtype)
    except InputError as error:
        return str(error)
    return ""


def _row(tensor: torch.Tensor, **more: Any) -> dict[str, Any]:
    return {"shape": list(tensor.shape) or [1], "dtype": str(tensor.dtype), **more}


def _told(row: dict[str, Any]) -> str:
    shape, dtype, *more = row.values()
    return f"{dtype} of shape {tuple(shape)}" + (f" for root_rank {more[0]}, average={more[1]}" if more else "")


def _rows(what: str, mine: dict[str, Any], name: str, client: Client) -> list[dict[str, Any]]:
    """What each worker is about to send. Raises InputError on all workers if one of them refuses."""
    text = json.dumps(mine).encode()
    if len(text) > _ROW_BYTES:
        reason = mine.get("refused", "the tensor has too many dimensions").encode("ascii", "replace").decode()
        # Of each character, at most two bytes.
        text = json.dumps({"refused": reason[: _ROW_BYTES // 2 - 8]}).encode()
    row = torch.zeros(_ROW_BYTES, dtype=torch.uint8)
    row[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    total = _ROW_BYTES * client.workers
    table = _gathered(row, _ROW_BYTES * client.rank, total, f"{name}.rows", client).view(client.workers, _ROW_BYTES)
    rows: list[dict[str, Any]] = [json.loads(bytes(one.tolist()).rstrip(b"\0")) for one in table]
    for rank, one in enumerate(rows):
        if "refused" in one:
            raise InputError(f"{what}: rank {rank}: {one['refused']}", "refused")
    return rows


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _gathered(mine: torch.Tensor, begin: int, total: int, name: str, client: Client) -> torch.Tensor:
    """The bytes of all workers; those of this one are at `begin`. Every byte has one worker, and the others contribute zero."""
    words = -(-total // 4)
    room = torch.zeros(4 * words, dtype=torch.uint8)
    room[begin : begin + mine.numel()] = mine
    return _summed(room.view(torch.int32), name, client).view(torch.uint8)[:total]


def _summed(mine: torch.Tensor, name: str, client: Client) -> torch.Tensor:
    """The sum of the flat tensors of all workers."""
    # Room for powers of two, so that few tensors are declared for lengths that change. A round has the length that it needs.
    capacity = 1 << (mine.numel() - 1).bit_length()
    declared = _declared(client, f"{name}.{capacity}", capacity, mine.dtype, False, dynamic=True)
    handle = client.push(declared, mine)
    got = client.pull(declared).wait()
    handle.wait()
    total: torch.Tensor = torch.from_numpy(got.view(np.uint8)).view(mine.dtype)
    return total


def _declared(client: Client, name: str, elements: int, dtype: Any, average: bool, dynamic: bool = False) -> Declared:
    known = state_of(client).collectives
    if name not in known:
        rule = MEAN if average else Assign()
        known[name] = client.declare(name, elements, dtype, rule, None, "sync", 0, dynamic, backup_workers=0)
        follow(client, known[name])
    return known[name]
