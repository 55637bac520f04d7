"""A gradient's way to the servers and back: buffers of the library's memory, and staging for what lies on a device."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from .._native import Handle
from .._native import Tensor as Declared
from ..client import Client
from ..errors import InputError
from ..optimizers import Assign

Named = Iterable[tuple[str, torch.Tensor]]

# What is pulled is the mean of what workers contributed.
MEAN = Assign(average=True)


def empty(client: Client, shape: Iterable[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor in the library's registered memory, which travels without a copy, as do contiguous parts of it."""
    lengths = list(shape)
    memory = client.empty(lengths, dtype)
    # numpy has no bfloat16 of its own.
    bits = memory.view(np.int16) if dtype == torch.bfloat16 else memory
    return torch.from_numpy(bits).view(dtype)


class Exchange:
    """A gradient's way there and back: one buffer of the library's memory, and what lies elsewhere is copied to it and
    from it."""

    def __init__(self, client: Client, declared: Declared, like: torch.Tensor) -> None:
        self.client, self.declared, self.priority = client, declared, declared.priority
        # Never a tensor of its own for what has no elements in its shape.
        self.buffer = empty(client, (like.numel(),), like.dtype)
        # torch copies between a device and pinned memory without waiting, and the library's memory is not pinned.
        self.pinned = staging(like)
        self.handle: Handle | None = None
        # Whose numbers the buffer has, and who has not copied them yet.
        self.owner: Any = None

    def begin(self, gradient: torch.Tensor, priority: int | None = None) -> Handle:
        """Contributes it. The gradient is free again when this returns."""
        self.wait()
        flat = gradient.detach().reshape(-1)
        if self.pinned is not None:
            self.pinned.copy_(flat, non_blocking=True)
            wait_for_device(gradient)
            flat = self.pinned
        self.buffer.copy_(flat)
        priority = self.priority if priority is None else priority
        self.handle = self.client.push_pull(self.declared, self.buffer, out=self.buffer, priority=priority)
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
                wait_for_device(into)

    def wait(self) -> bool:
        """Waits for what is under way; was there anything?"""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.wait()
        return handle is not None


def refuse_strangers(names: Mapping[str, torch.Tensor], known: Container[torch.Tensor]) -> None:
    """Refuses parameters that have a gradient and no way to the servers: workers would drift apart."""
    strangers = [name for name, p in names.items() if p.grad is not None and p.numel() and p not in known]
    if strangers:
        raise InputError(
            f"{', '.join(strangers)}: gradients that no other worker sees, for they needed none when they were wrapped; after "
            "unfreezing call remove_hooks() and wrap anew, or wrap before freezing",
            "unfrozen",
        )


def staging(like: torch.Tensor) -> torch.Tensor | None:
    """Pinned memory for what lies on a device; None for what does not."""
    if like.device.type == "cpu":
        return None
    if like.device.type != "cuda":
        raise InputError(f"gradients on {like.device} are not served; move them to the CPU", "wrong_device")
    return torch.empty(like.numel(), dtype=like.dtype, pin_memory=True)


def wait_for_device(tensor: torch.Tensor) -> None:
    """Copies from and to where the tensor lies are done after it."""
    torch.cuda.current_stream(tensor.device).synchronize()


def unique(named: Named) -> dict[str, torch.Tensor]:
    """By name; refuses a name that comes twice."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in named:
        if name in found:
            raise InputError(f"the name {name!r} comes twice; names are to be unique", "same_name")
        found[name] = parameter
    return found
