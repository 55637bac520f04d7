"""A model wrapper: gradients are the mean over workers when backward returns."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from ..client import Client
from ..codecs import Codec
from ..errors import InputError
from ._along import Along
from ._average import Averager
from ._broadcast import broadcast, is_over, tensors_in
from ._compression import codec_of
from ._join import Join, Uneven
from ._process import client_or_default
from ._roll import ABSENT, Absence, Roll, refuse_absent
from ._state import state_of


class DistributedDataParallel(nn.Module, Uneven):
    """Wraps a model. Parameters and buffers start with the values of rank 0. Gradients are averaged over all workers while
    backward runs, and the averages are complete when it returns, so that any optimizer takes the same step on every worker.
    With `broadcast_buffers`, every forward in training mode starts with the buffers of rank 0 (unless `resume` was called). The default `client` is the
    client of the process (`init`).

    Every worker must call backward equally often, unless it joins (`join`, or torch's context `Join`). A worker contributes zeros for
    parameters that it does not use; if no worker uses a parameter, it stays without a gradient. Parameters that are no longer frozen
    are averaged from the next forward on. If a backward fails midway, the next forward ends it: the missing gradients count as zeros,
    and the results are discarded. The caller zeroes gradients.

    For torch's own DistributedDataParallel use `ddp_hook`."""

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int] | None = None,
        broadcast_buffers: bool = True,
        compression: Any = None,
        *,
        client: Client | None = None,
        prefix: str = "model.",
        codec: Codec | None = None,
    ) -> None:
        super().__init__()
        self.module, self.device_ids = module, device_ids
        client, self.broadcast_buffers = client_or_default(client), broadcast_buffers
        averager = Averager(module.named_parameters(), client, prefix + "gradient.", codec_of(compression, codec), 1)
        averager.on_begin = self._at_end_of_backward
        self._averager, self._is_told = averager, False
        state = state_of(client)
        self._order = state.order = state.order or Order(client)
        self._number, self._shared = self._order.add(self, averager.absence), _Buffers(module, client, averager.prefix)
        named = tensors_in(module.state_dict(), prefix + "state.")
        # A worker that was restarted gets the values when it resumes.
        if not (client._has_rejoined and is_over(named, client)):
            broadcast(named, client, 0)
        self.enroll(client, averager.absence, self._order.shadow, *([self._shared.absent] if broadcast_buffers else []))

    def forward(self, *inputs: Any, **words: Any) -> Any:
        """Calls the wrapped model."""
        self._begin_forward()
        return self.module(*inputs, **words)

    # torch.compile leaves it alone.
    @getattr(torch, "_disable_dynamo", lambda method: method)  # type: ignore[untyped-decorator]
    def _begin_forward(self) -> None:
        if _in_backward():
            return
        if self._averager.along is not None and torch.is_grad_enabled():
            self._averager.along.begin_forward()
        if self._is_told:
            # A backward failed midway. The other workers wait for the missing gradients, and before that for the number of this model.
            self._is_told = False
            self._order.check(self._number)
            self._averager.forget()
        if not (self._averager.is_on and torch.is_grad_enabled()):
            return
        Join.notify_join_context(self)
        self._averager.refuse_unresumed()
        self._averager.adopt()
        if self.broadcast_buffers and self.training and self._averager.along is None:
            self._shared.broadcast(self.module)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context, gradients are only summed locally; the first backward after it averages the sum."""
        before, self._averager.is_on = self._averager.is_on, False
        try:
            yield
        finally:
            self._averager.is_on = before

    def _carry_buffers(self) -> Averager:
        """For `resume`: buffers are those of one worker after each backward, instead of before each forward. Returns the averager."""
        if self.broadcast_buffers:
            self._averager.carry(Along(self.module, self._client, self._averager.prefix))
            # They have no rounds of their own any more.
            for enrolled in state_of(self._client).uneven.values():
                if enrolled.wrapper() is self:
                    enrolled.absences.remove(self._shared.absent)
        return self._averager

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers. backward calls this itself."""
        self._is_told = False
        self._order.check(self._number)
        self._averager.synchronize()

    def _discard(self) -> None:
        """Discards the gradients that any worker has sent in this step. All workers call it."""
        self._is_told = False
        self._averager.forget(is_begun=True)

    def shadows(self) -> list[Callable[[], bool]]:
        """Its gradients and its buffers have rounds of their own, and so has the order of all models."""
        has_rounds = self.broadcast_buffers and self._averager.along is None
        of_buffers = [partial(self._shared.shadow, self.module)] if has_rounds else []
        return [self._averager.shadow, self._order.shadow, *of_buffers]

    @property
    def contributors(self) -> Sequence[int]:
        """The ranks whose gradients are in the last means: all workers, but those that have joined (`join`)."""
        return self._averager.contributors

    def align(self, root: int) -> None:
        """Copies parameters and buffers from a worker that took the last step to all workers."""
        broadcast(tensors_in(self.module.state_dict(), self._averager.prefix + "joined."), self._client, root, initial=False)
        self._averager.contributors = list(range(self._client.workers))

    @property
    def join_device(self) -> torch.device:
        """For torch's `Join`: where it counts workers."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    def _at_end_of_backward(self) -> None:
        if not self._is_told:
            if _in_reentrant_checkpoint():
                raise InputError(
                    "a model whose last layers are in torch.utils.checkpoint with use_reentrant=True has no end of its backward that can be "
                    "waited for: pass use_reentrant=False, or use DistributedOptimizer",
                    "reentrant",
                )
            self._is_told = True
            # The one way that torch has to be called when all of a backward's hooks have run.
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)  # type: ignore[attr-defined]


class _Buffers:
    """The buffers of a model, which are those of rank 0 before each forward; once rank 0 has joined, those of the lowest rank that has
    not."""

    def __init__(self, module: nn.Module, client: Client, prefix: str) -> None:
        self._client, self._of, self._prefix = client, prefix, f"{prefix}buffer."
        self._roll: Roll | None = None
        # Who came to the last forward that anybody came to.
        self._present = list(range(client.workers))
        # How many bytes each has. The buffers themselves end with the model.
        self._bytes: dict[str, int] = {}
        self._named(module)

    def broadcast(self, module: nn.Module) -> None:
        """Copies the buffers to all workers."""
        self._round(1, self._named(module))

    def shadow(self, module: nn.Module) -> bool:
        """Takes part in a broadcast before a forward of others, and returns whether there was any."""
        return self._round(0, self._named(module))

    def absent(self) -> bool:
        """Takes part in one broadcast as a worker that has dropped the model, and returns False: there is no other one."""
        self._round(ABSENT, [(name, torch.zeros(count, dtype=torch.uint8)) for name, count in self._bytes.items()])
        return False

    def _named(self, module: nn.Module) -> list[tuple[str, torch.Tensor]]:
        # `data`, as BatchNorm changes its statistics without a new version: a forward between another one and its backward changes
        # nothing that this backward needs.
        named = [(name, one.data) for name, one in module.named_buffers() if one.numel()]
        self._bytes = {name: one.numel() * one.element_size() for name, one in named}
        return named

    def _round(self, code: int, named: list[tuple[str, torch.Tensor]]) -> bool:
        if not named:
            return False
        if self._roll is None:
            self._roll = Roll(self._client, f"{self._prefix}(present)")
        roll, codes = self._roll, []

        def end() -> None:
            called = roll.end()
            # If this came later, the buffers would be the zeros of a root that is absent.
            refuse_absent(called, self._of)
            codes.extend(called.codes)

        roll.begin(code)
        # Workers that come to this round know who came to the last one.
        broadcast(tensors_in(named, self._prefix), self._client, self._present[0], check=end)
        self._present = [rank for rank, one in enumerate(codes) if one] or self._present
        return any(codes)


class Order:
    """The order in which workers call backward of the wrapped models of a client. Workers that call it of different models would wait for
    each other until the deadline. Where there are several models, workers therefore compare their numbers before they wait."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # The models by number, and what is left of those that are gone.
        self.models: list[tuple[weakref.ref[DistributedDataParallel], Absence]] = []
        self._roll: Roll | None = None

    def add(self, model: DistributedDataParallel, absence: Absence) -> int:
        """Adds a model, and returns its number."""
        self.models.append((weakref.ref(model), absence))
        return len(self.models)

    def check(self, number: int) -> None:
        """Raises InputError on all workers if they are at different models."""
        numbers = self._round(number)
        if len(numbers) > 1:
            # Some workers have sent gradients of each of these models. If they stayed on their way, they would be in the next step's means.
            for one in sorted(numbers):
                model, absence = self.models[one - 1]
                found = model()
                if found is None:
                    absence.take_part()
                else:
                    found._discard()
            raise InputError(
                "workers called backward of different models, in each of which the others' gradients are waited for: call them in the "
                "same order on all workers, or use DistributedOptimizer, which waits in step()",
                "order",
            )

    def shadow(self) -> bool:
        """Takes part in a comparison of others, and returns whether there was any."""
        return bool(self._round(0))

    def _round(self, number: int) -> set[int]:
        if len(self.models) < 2:
            return set()
        if self._roll is None:
            self._roll = Roll(self._client, "model.order")
        self._roll.begin(number)
        return set(self._roll.end().codes) - {0}


def _in_reentrant_checkpoint() -> bool:
    """Whether this backward was started by another one, whose end torch does not tell."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is CheckpointFunction.backward.__code__:
            return True
        frame = frame.f_back
    return False


def _in_backward() -> bool:
    # torch 2 tells; before it no model is called there.
    return bool(getattr(torch._C, "_current_graph_task_id", lambda: -1)() != -1)
