"""The exchange of gradients with servers: buffers in registered memory, and staging of tensors on a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from .._native import Handle
from .._native import Tensor as Declared
from ..client import Client
from ..errors import InputError
from ..optimizers import Assign
from ._state import state_of

Named = Iterable[tuple[str, torch.Tensor]]

# What is pulled is the mean of what workers contributed.
MEAN = Assign(average=True)


def empty(client: Client, shape: Iterable[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a new tensor in registered memory. The tensor and contiguous parts of it travel without a copy."""
    lengths = list(shape)
    memory = client.empty(lengths, dtype)
    # numpy has no bfloat16 of its own.
    bits = memory.view(np.int16) if dtype == torch.bfloat16 else memory
    return torch.from_numpy(bits).view(dtype)


def _bits_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a contiguous tensor on the CPU. numpy has no bfloat16 of its own."""
    array: np.ndarray[Any, Any] = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


class Exchange:
    """Sends a gradient from a buffer of registered memory, to which it is copied, and receives the mean: in a tensor on the CPU, if one is
    given, and otherwise in the buffer. A gradient that is in the memory where the last mean was received, and receives the next one, is
    sent from there."""

    def __init__(self, client: Client, declared: Declared, like: torch.Tensor) -> None:
        self.client, self.declared, self.priority = client, declared, declared.priority
        like = plain(like)
        # Never a tensor of its own for what has no elements in its shape.
        self.buffer = empty(client, (like.numel(),), like.dtype)
        self._memory = _bits_of(self.buffer)
        # torch copies between a device and pinned memory without waiting, and the library's memory is not pinned.
        self.pinned = staging(like)
        self.handle: Handle | None = None
        # Whose numbers the buffer has, and who has not copied them yet.
        self.owner: Any = None
        # What the mean is received in, if not in the buffer.
        self._into: torch.Tensor | None = None
        self._flat: torch.Tensor | None = None

    def begin(self, gradient: torch.Tensor | None, priority: int | None = None, into: torch.Tensor | None = None) -> Handle:
        """Contributes the gradient, a sparse one with zeros in all other rows; zeros for None. It may be modified again when this
        returns, unless it is `into`. Whoever waits for the mean finds it in `into`, and calls `copy_to` with it in any case."""
        self.wait()
        source = out = self.buffer
        # If the mean were received in the buffer first, it would be copied once more.
        self._into = into if self.pinned is None and into is not None and _is_in_order(into) else None
        is_again = self._into is not None and self._is_again(self._into)
        if self._into is not None:
            if self._flat is None or not is_again:
                self._flat = self._into.detach().view(-1)
            # One view as long as the memory is the same: the library knows an array by its object.
            out = self._flat
        if is_again and gradient is into:
            source = out
        elif gradient is None:
            self.buffer.zero_()
        else:
            flat = plain((gradient.to_dense() if gradient.is_sparse else gradient).detach()).reshape(-1)
            if self.pinned is not None:
                self.pinned.copy_(flat, non_blocking=True)
                wait_for_device(gradient)
                flat = self.pinned
            is_same = (flat.dtype, flat.device) == (self.buffer.dtype, self.buffer.device)
            if is_same and flat.is_contiguous() and not flat.is_neg() and type(flat) in (torch.Tensor, torch.nn.Parameter):
                # torch would copy with all its threads, which wait for each other where workers share a host's cores.
                np.copyto(self._memory, _bits_of(flat))
            else:
                self.buffer.copy_(flat)
        priority = self.priority if priority is None else priority
        self.handle = self.client.push_pull(self.declared, source, out=out, priority=priority)
        return self.handle

    def _is_again(self, into: torch.Tensor) -> bool:
        """Whether the last mean that was received in a tensor came to this memory. It is kept, so nothing else is at the same address."""
        last = self._flat
        return last is not None and (last.data_ptr(), last.numel(), last.dtype) == (into.data_ptr(), into.numel(), into.dtype)

    def end(self, into: torch.Tensor) -> None:
        """Waits, and copies the mean into a tensor."""
        if self.wait():
            self.copy_to(into)

    def copy_to(self, into: torch.Tensor) -> None:
        """Copies the mean, which has been received, into a tensor, unless it was received there."""
        if into is self._into:
            return
        with torch.no_grad():
            mean = self.buffer if self._into is None else self._into.detach()
            if self.pinned is not None:
                self.pinned.copy_(self.buffer)
                mean = self.pinned
            # Not into real numbers of `into`: those of a conjugate view, as gradients may be, would be a copy.
            mean = torch.view_as_complex(mean.view(*into.shape, 2)) if into.is_complex() else mean.view(into.shape)
            into.copy_(mean, non_blocking=self.pinned is not None)
            if self.pinned is not None:
                # The staging memory is written again by the next round.
                wait_for_device(into)

    def wait(self) -> bool:
        """Waits for the operation in flight, and returns whether there was one."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.wait()
        return handle is not None


def _is_in_order(tensor: torch.Tensor) -> bool:
    """Whether its memory has its elements in order, each a number."""
    is_dense = tensor.layout == torch.strided and tensor.is_contiguous()
    return is_dense and not (tensor.is_complex() or tensor.is_neg())


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers as real ones: servers have no complex types."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def refuse_shard(name: str, tensor: torch.Tensor) -> None:
    """Rejects a part of a tensor. Each worker has another part, and a mean over different parts would be wrong silently."""
    kinds = {kind.__name__ for kind in type(tensor).__mro__}
    if kinds & {"DTensor", "FlatParameter"} or getattr(tensor, "_is_flat_param", False) or getattr(tensor, "_fsdp_flattened", False):
        raise InputError(
            f"{name!r} is sharded over processes (FSDP, fully_shard or DTensor), so that each worker has another part of it; Gradwire "
            "averages whole tensors: pass the model without sharding, or train it with FSDP alone",
            "sharded",
        )


def staging(like: torch.Tensor) -> torch.Tensor | None:
    """Returns pinned memory for a tensor on a CUDA device, and None for a tensor on the CPU."""
    if like.device.type == "cpu":
        return None
    if like.device.type != "cuda":
        raise InputError(f"unsupported device {like.device}: move the gradients to the CPU", "wrong_device")
    return torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)


def wait_for_device(tensor: torch.Tensor) -> None:
    """Waits until all copies from and to the device of the tensor have completed."""
    torch.cuda.current_stream(tensor.device).synchronize()


def follow(client: Client, declared: Declared) -> int:
    """In a worker that was restarted and has called `resume`: its rounds of this tensor continue after those of the others. Returns how
    many those were, and elsewhere 0."""
    return client.resume([declared]) if state_of(client).follows else 0


def unique(named: Named) -> dict[str, torch.Tensor]:
    """Returns the parameters by name; rejects duplicate names, and parts of parameters."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in named:
        if name in found:
            raise InputError(f"duplicate name {name!r}: names must be unique", "same_name")
        refuse_shard(name, parameter)
        found[name] = parameter
    return found


class Taken:
    """The prefix of the tensors of a wrapper. If two models in a process have parameters of the same names, as two nets of a GAN have, the
    second wrapper has another prefix. It follows from the order in which wrappers are made, which is the same on all workers.
    Otherwise gradients of both models would be averaged in one tensor."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._all = state_of(client).prefixes
        turn, self.prefix = 1, prefix
        while self.prefix in self._all:
            turn += 1
            # No name of torch's begins with a parenthesis: "2.weight" is the name of a layer.
            self.prefix = f"{prefix}({turn})."
        self._all.add(self.prefix)

    def free(self) -> None:
        """Another wrapper may use the prefix from now on."""
        self._all.discard(self.prefix)
