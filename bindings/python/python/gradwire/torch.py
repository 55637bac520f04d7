"""Gradwire under torch: an optimizer wrapper, a communication hook for DistributedDataParallel, broadcasts.

Gradients are averaged over workers by servers (rule `Assign(average=True)`), in buffers of the library's memory. What lies
on a CUDA device goes through pinned memory; no device has run that part yet.

    client = gradwire.connect()
    gradwire.torch.broadcast_parameters(model.named_parameters(), client)
    optimizer = gradwire.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), client)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
import torch.distributed

from .client import Client, Declaration, wait_all
from .codecs import Codec
from .dtypes import element_of
from .errors import InputError
from .optimizers import Assign
from ._native import Handle
from ._native import Tensor as Declared

Named = Iterable[tuple[str, torch.Tensor]]

# Sums that are the mean of what workers contributed.
MEAN = Assign(average=True)


def empty(client: Client, shape: Iterable[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in the library's registered memory, which travels without a copy, as do contiguous parts of it."""
    lengths = list(shape)
    memory = client.empty(lengths, dtype)
    # numpy has no bfloat16 of its own.
    bits = memory.view(np.int16) if dtype == torch.bfloat16 else memory
    return torch.from_numpy(bits).view(dtype)


class _Exchange:
    """A gradient's way there and back: one buffer of the library's memory, and what lies elsewhere is copied to it and
    from it."""

    def __init__(self, client: Client, declared: Declared, like: torch.Tensor) -> None:
        self.client, self.declared, self.priority = client, declared, declared.priority
        # Never a tensor of its own for what has no elements in its shape.
        self.buffer = empty(client, (like.numel(),), like.dtype)
        # torch copies between a device and pinned memory without waiting, and the library's memory is not pinned.
        self.pinned = _pinned(like)
        self.handle: Handle | None = None

    def begin(self, gradient: torch.Tensor) -> Handle:
        """Contributes it. The gradient is free again when this returns."""
        self.wait()
        flat = gradient.detach().reshape(-1)
        if self.pinned is not None:
            self.pinned.copy_(flat, non_blocking=True)
            _synchronize(gradient)
            flat = self.pinned
        self.buffer.copy_(flat)
        self.handle = self.client.push_pull(self.declared, self.buffer, out=self.buffer, priority=self.priority)
        return self.handle

    def end(self, into: torch.Tensor) -> None:
        """Waits, and copies the mean to where it belongs."""
        if self.wait():
            self.copy_to(into)

    def copy_to(self, into: torch.Tensor) -> None:
        """Copies the mean, which is there."""
        with torch.no_grad():
            mean = self.buffer.view(into.shape)
            if self.pinned is not None:
                self.pinned.copy_(self.buffer)
                mean = self.pinned.view(into.shape)
            into.copy_(mean, non_blocking=self.pinned is not None)
            if self.pinned is not None:
                # The staging memory is written again by the next round.
                _synchronize(into)

    def wait(self) -> bool:
        """Waits for what is under way; was there anything?"""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.wait()
        return handle is not None


def _pinned(like: torch.Tensor) -> torch.Tensor | None:
    if like.device.type == "cpu":
        return None
    if like.device.type != "cuda":
        raise InputError(f"gradients on {like.device} are not served; move them to the CPU", "wrong_device")
    return torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)


def _synchronize(tensor: torch.Tensor) -> None:
    torch.cuda.current_stream(tensor.device).synchronize()


def _declare(client: Client, names: list[str], like: list[torch.Tensor], codec: Codec | None) -> list[Declared]:
    # First layers first: the next forward pass needs them first.
    pairs = enumerate(zip(names, like))
    return client.declare_all(
        Declaration(name, one.numel(), one.dtype, MEAN, codec if one.dtype == torch.float32 else None, "sync", -at)
        for at, (name, one) in pairs
        if one.numel()
    )


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer, and is one: each gradient is averaged over all workers as soon as backward has it, while earlier layers'
    are still computed, and `step` waits for them all first. Everything else is the wrapped optimizer's.

    `backward_passes_per_step` gradients of a parameter are summed here before they are averaged. A parameter without a
    gradient in some step contributes zeros, so that workers may use different parts of a model.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Named,
        client: Client,
        *,
        prefix: str = "gradient.",
        codec: Codec | None = None,
        backward_passes_per_step: int = 1,
    ) -> None:
        self.optimizer, self.client, self._passes = optimizer, client, backward_passes_per_step
        if backward_passes_per_step < 1:
            raise InputError("backward_passes_per_step is 1 or more", "backward_passes")
        named = _unique(named_parameters)
        known = {id(parameter) for parameter in named.values()}
        missing = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
        if missing:
            raise InputError(f"{missing} parameters of the optimizer have no name in named_parameters", "unnamed")
        chosen = {name: p for name, p in named.items() if p.requires_grad and p.numel()}
        declared = _declare(client, [prefix + name for name in chosen], list(chosen.values()), codec)
        self._exchanges = {p: _Exchange(client, d, p) for p, d in zip(chosen.values(), declared)}
        self._left = dict.fromkeys(self._exchanges, backward_passes_per_step)
        self._nodes: list[Any] = []
        self._hooks = [self._hook(p) for p in self._exchanges]
        self._synchronized = False

    def _hook(self, parameter: torch.Tensor) -> Any:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            return parameter.register_post_accumulate_grad_hook(self._ready)  # type: ignore[no-untyped-call]
        # Before torch 2.1: the node that adds to `.grad` calls back behind itself. It goes with whoever has it last.
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        self._nodes.append(node)
        return node.register_hook(lambda *_: self._ready(parameter))

    def _ready(self, parameter: torch.Tensor) -> None:
        if self._left[parameter] <= 0:
            raise InputError(
                "a gradient was computed more often than backward_passes_per_step says before step() or zero_grad()",
                "backward_passes",
            )
        self._left[parameter] -= 1
        if self._left[parameter] == 0 and parameter.grad is not None:
            self._exchanges[parameter].begin(parameter.grad)

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers: for what looks at them before `step`, such as
        clipping."""
        for parameter, exchange in self._exchanges.items():
            if exchange.handle is None:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                exchange.begin(parameter.grad)
        for parameter, exchange in self._exchanges.items():
            assert parameter.grad is not None
            exchange.end(parameter.grad)
            self._left[parameter] = self._passes
        self._synchronized = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Waits for all gradients, unless `synchronize` did, and steps."""
        if closure is not None:
            raise InputError("a closure computes gradients within the step, which cannot be averaged", "closure")
        if not self._synchronized:
            self.synchronize()
        self._synchronized = False
        return self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's; gradients under way are waited for, and forgotten."""
        for parameter, exchange in self._exchanges.items():
            exchange.wait()
            self._left[parameter] = self._passes
        self._synchronized = False
        self.optimizer.zero_grad(set_to_none)

    def remove_hooks(self) -> None:
        """Gradients are not averaged any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # What an optimizer has is the wrapped one's.

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Of the wrapped optimizer."""
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        """Of the wrapped optimizer."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        """Of the wrapped optimizer."""
        return self.optimizer.defaults

    def state_dict(self) -> dict[str, Any]:
        """Of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: its parameters would have no names, and would not be averaged."""
        raise InputError("add parameters to the optimizer before it is wrapped", "unnamed")

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"


def _unique(named: Named) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, parameter in named:
        if name in found:
            raise InputError(f"the name {name!r} comes twice; names are to be unique", "same_name")
        found[name] = parameter
    return found


def broadcast_parameters(parameters: Mapping[str, torch.Tensor] | Named, client: Client, *, prefix: str = "parameter.") -> None:
    """Gives every worker rank 0's tensors, in place: `model.state_dict()`, or `model.named_parameters()`. Every worker
    calls it with the same names. The sign of a zero is lost where it is not the first time."""
    pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
    named = {name: one for name, one in pairs if isinstance(one, torch.Tensor) and one.numel()}
    _broadcast([(prefix + name, one) for name, one in named.items()], client)


def _broadcast(named: list[tuple[str, torch.Tensor]], client: Client) -> None:
    declarations, memories = [], []
    for name, one in named:
        # Types that do not travel go as their bytes.
        plain = one.detach().to("cpu").contiguous().reshape(-1)
        if not _travels(plain.dtype):
            plain = plain.view(torch.uint8)
        memories.append(plain.clone())
        declarations.append(Declaration(name, plain.numel(), plain.dtype, Assign(), mode="sync"))
    declared = client.declare_all(declarations)
    # Once set, an initial value stays: a repeated broadcast is a round, to which the others contribute zeros.
    again = getattr(client, "_broadcast", None)
    if again is None:
        again = client._broadcast = set()  # type: ignore[attr-defined]
    handles: list[Handle] = []
    for tensor, memory in zip(declared, memories):
        if tensor.key in again:
            handles.append(client.push(tensor, memory if client.rank == 0 else torch.zeros_like(memory)))
        else:
            again.add(tensor.key)
            handles.append(client.init_start(tensor, memory))
    # A pull that overtook an initial value would bring zeros.
    wait_all(handles)
    wait_all([client.pull(tensor, out=memory) for tensor, memory in zip(declared, memories)])
    with torch.no_grad():
        for (_, one), memory in zip(named, memories):
            one.copy_(memory.view(one.dtype).view(one.shape))


def _travels(dtype: torch.dtype) -> bool:
    try:
        element_of(dtype)
    except InputError:
        return False
    return True


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer | DistributedOptimizer, client: Client) -> None:
    """Gives every worker rank 0's state of an optimizer: its tensors, counts, and the options of its groups. Options have
    to be what JSON holds; nothing that is received is ever executed."""
    inner = optimizer.optimizer if isinstance(optimizer, DistributedOptimizer) else optimizer
    mine = inner.state_dict()
    plan = broadcast_object(_described(mine) if client.rank == 0 else None, client, name="optimizer.plan")
    tensors: dict[str, torch.Tensor] = {}
    for path, shape, dtype in plan["tensors"]:
        there = _at(mine["state"], path) if client.rank == 0 else None
        tensors[path] = torch.empty(shape, dtype=getattr(torch, dtype)) if there is None else there.detach().cpu().clone()
    names = sorted(path for path, one in tensors.items() if one.numel())
    _broadcast([(f"optimizer.{plan['tag']}.{path}", tensors[path]) for path in names], client)
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


def broadcast_object(value: Any, client: Client, *, name: str = "object") -> Any:
    """Gives every worker rank 0's value, as far as JSON holds it."""
    text = json.dumps(value).encode() if client.rank == 0 else b""
    length = torch.tensor([len(text)])
    _broadcast([(f"{name}.length", length)], client)
    size = int(length[0])
    # Room is for powers of two, so that few tensors are declared for values whose length changes.
    room = torch.zeros(1 << max(6, size.bit_length()), dtype=torch.uint8)
    if client.rank == 0:
        room[:size] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    _broadcast([(f"{name}.{room.numel()}", room)], client)
    return json.loads(room[:size].numpy().tobytes())


class DdpState:
    """What `ddp_hook` keeps: a buffer for each bucket. One for each model."""

    def __init__(self, client: Client, *, prefix: str = "ddp.", codec: Codec | None = None) -> None:
        self.client, self.prefix, self.codec = client, prefix, codec
        self._exchanges: dict[tuple[int, int, torch.dtype], _Exchange] = {}

    def exchange(self, bucket: Any) -> _Exchange:
        """The bucket's. DDP cuts buckets anew after the first iteration; the same cut on every worker."""
        flat = bucket.buffer()
        name = (bucket.index(), flat.numel(), flat.dtype)
        if name not in self._exchanges:
            full = f"{self.prefix}{name[0]}.{name[1]}.{element_of(flat.dtype)}"
            codec = self.codec if flat.dtype == torch.float32 else None
            # Bucket 0 has the last layers, and is ready first; the others are needed before it.
            declared = self.client.declare(full, flat.numel(), flat.dtype, MEAN, codec, "sync", name[0])
            self._exchanges[name] = _Exchange(self.client, declared, flat)
        return self._exchanges[name]

    def __iter__(self) -> Iterator[_Exchange]:
        return iter(self._exchanges.values())


def ddp_hook(state: DdpState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook(DdpState(client), ddp_hook)`: buckets are averaged by servers instead
    of an all-reduce."""
    flat = bucket.buffer()
    exchange = state.exchange(bucket)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[flat.device] if flat.is_cuda else None)

    def end(handle: Handle) -> None:
        try:
            handle.wait()
            exchange.copy_to(flat)
            future.set_result(flat)
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]

    exchange.begin(flat).add_done_callback(end)
    return future


# DistributedDataParallel looks at these, and takes no strings.
ddp_hook.__annotations__["bucket"] = torch.distributed.GradBucket  # type: ignore[attr-defined]
ddp_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
