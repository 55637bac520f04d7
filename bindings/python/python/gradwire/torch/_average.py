"""Averages the gradients of parameters over workers as soon as backward has computed them. Owns the hooks, the record of
contributed gradients, and their order. Optimizers and models decide when to wait.

A round has a contribution of every worker to every tensor, and to the roll: who contributes, and to which parameters anyone does. Workers
may therefore use different parameters, send a gradient again, have joined (`shadow`), or have been restarted (`receive`)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Optional

import torch

from .._native import Tensor as Declared
from ..client import Client, Declaration
from ..codecs import Codec
from ..errors import InputError, OperationError
from ..optimizers import Assign
from ._along import Along
from ._exchange import MEAN, Exchange, Named, Taken, plain, unique
from ._roll import ABSENT, Absence, Called, Roll, refuse_absent

_CHANGED = (
    "gradients were modified after backward had contributed them, and the change would be lost: call synchronize() after "
    "backward and before the code that modifies them (GradScaler's unscale_ and step, gradient clipping, zeroing a gradient)"
)

# What a worker is in a round: 0 if it has joined, ABSENT if it has joined and dropped the wrapper.
PRESENT, FORGETS, SENDS_AGAIN, CANNOT, NEEDS_STATE = 1, 2, 3, 4, 5
_ROLL = "(round)"
_SAMPLE = 16

Gradients = Mapping[torch.Tensor, Optional[torch.Tensor]]


class _Sent:
    """A gradient as it was sent. Some writes do not change a tensor's version (GradScaler's unscaling), so a sample of its
    elements is kept as well."""

    def __init__(self, gradient: torch.Tensor) -> None:
        self.gradient, self._version = gradient, gradient._version
        self._some = self._sample().clone()

    def _sample(self) -> torch.Tensor:
        dense = self.gradient._values() if self.gradient.is_sparse else self.gradient
        flat = dense.detach().reshape(-1)
        return flat[:: max(1, flat.numel() // _SAMPLE)]

    def is_still(self, gradient: torch.Tensor | None) -> bool:
        """Whether this is the same gradient with the same elements."""
        if gradient is not self.gradient or gradient._version != self._version:
            return False
        now = self._sample()
        return bool(((now == self._some) | (now.isnan() & self._some.isnan())).all())


class Averager:
    """The gradients of named parameters."""

    def __init__(self, named: Named, client: Client, prefix: str, codec: Codec | None, passes: int) -> None:
        if passes < 1:
            raise InputError("backward_passes_per_step must be at least 1", "backward_passes")
        self.names = unique(named)
        self._client, self._codec, self._passes = client, codec, passes
        self._names_taken = Taken(client, prefix)
        self.prefix = self._names_taken.prefix
        self.absence = Absence(client, self.prefix)
        self._exchanges: dict[torch.Tensor, Exchange] = {}
        self._left: dict[torch.Tensor, int] = {}
        # Gradients that are on their way.
        self._sent: dict[torch.Tensor, _Sent] = {}
        # Of them, those to which a later backward has added.
        self._stale: set[torch.Tensor] = set()
        # Parameters whose gradients are sparse.
        self.sparse: set[torch.Tensor] = set()
        self._nodes: list[Any] = []
        self._hooks: list[Any] = []
        self._roll: Roll | None = None
        self._loss: Exchange | None = None
        # The workers of the last round that had any.
        self.contributors = list(range(client.workers))
        # A mean over the workers that took part, times this, is one over the contributors.
        self._share = 1.0
        # Whether nobody has contributed to the last round.
        self._is_over = False
        # Rounds whose means were taken.
        self.steps = 0
        # Copies the state of training from a worker to those that need it; this one, if the second argument is true.
        self.transfer: Callable[[int, bool], None] | None = None
        # Whether the worker whose buffers travel had not joined in the last round. If it had, its buffers are old.
        self._has_root = True
        # The buffers of the model, if they travel with its gradients.
        self.along: Along | None = None
        # Whether the optimizer is within a step, where its state is incomplete and another worker cannot continue from it.
        self.is_within_step = False
        self.is_on = True
        # Whether gradients are means, and no backward has begun since.
        self.is_synchronized = False
        # Called as a gradient is on its way.
        self.on_begin: Callable[[], None] = lambda: None
        self.adopt()

    def adopt(self, named: Named = ()) -> None:
        """Averages these parameters, too, and those that are no longer frozen. All workers must do the same."""
        for name, parameter in unique(named).items():
            if self.names.setdefault(name, parameter) is not parameter:
                raise InputError(f"duplicate name {name!r}: names must be unique", "same_name")
        new: dict[torch.Tensor, tuple[int, str]] = {}
        for at, (name, p) in enumerate(self.names.items()):
            if p not in self._exchanges and p.numel() and (p.requires_grad or p.grad is not None):
                # A parameter may have several names.
                new.setdefault(p, (at, name))
        if self._roll is not None and not new:
            return
        declared = self._client.declare_all(self._declaration(p, *words) for p, words in new.items())
        self._exchanges.update((p, Exchange(self._client, one, p)) for p, one in zip(new, declared))
        self._left.update(dict.fromkeys(new, self._passes))
        self._hooks += [self._hook(p) for p in new if p.requires_grad]
        count = len(self._exchanges)
        self._roll = self.absence.roll = Roll(self._client, f"{self.prefix}{_ROLL}.{count}", count)
        self.absence.gradients = [exchange.declared for exchange in self._exchanges.values()]

    def _declaration(self, parameter: torch.Tensor, at: int, name: str) -> Declaration:
        # First layers first: the next forward pass needs them first. Everybody's gradient counts: workers that applied other
        # means would drift apart.
        like = plain(parameter)
        codec = self._codec if like.dtype == torch.float32 else None
        return Declaration(self.prefix + name, like.numel(), like.dtype, MEAN, codec, "sync", -at, backup_workers=0)

    def _hook(self, parameter: torch.Tensor) -> Any:
        if hasattr(parameter, "register_post_accumulate_grad_hook"):
            # The garbage collector does not see through such a hook: with a strong reference no dropped model would ever be freed.
            ready = weakref.WeakMethod(self._ready)

            def hook(parameter: torch.Tensor) -> None:
                method = ready()
                if method is not None:
                    method(parameter)

            return parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        # Before torch 2.1: the node that adds to `.grad` calls back behind itself. It goes with whoever has it last.
        with torch.enable_grad():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
        self._nodes.append(node)
        return node.register_hook(lambda *_: self._ready(parameter))

    def _ready(self, parameter: torch.Tensor) -> None:
        if not self.is_on:
            return
        self.is_synchronized = False
        self._left[parameter] -= 1
        if self._left[parameter] > 0 or parameter.grad is None:
            return
        if parameter in self._sent:
            # Another backward before the step, as in a loop with two losses. The sum is sent by `synchronize`. If it were sent here, this
            # would wait for workers that wait for a gradient of this one.
            self._stale.add(parameter)
            return
        self._begin(self._exchanges[parameter], parameter.grad)
        self._sent[parameter] = _Sent(parameter.grad)
        self.on_begin()

    def _begin(self, exchange: Exchange, gradient: torch.Tensor | None) -> None:
        exchange.begin(gradient)
        self.absence.sent.add(exchange.declared.key)

    def set_passes(self, passes: int) -> None:
        """Sets how many gradients are summed locally before they are averaged, from the next gradient on."""
        if passes < 1:
            raise InputError("backward_passes_per_step must be at least 1", "backward_passes")
        self._passes = passes
        self._left = dict.fromkeys(self._exchanges, passes)

    def synchronize(self) -> None:
        """Waits until all gradients are the mean over all workers that have data. Parameters without a gradient contribute zeros. If
        no worker has a gradient of a parameter, it stays without one, as in one process."""
        self.adopt()
        is_changed = any(p not in self._stale and not sent.is_still(p.grad) for p, sent in self._sent.items())
        gradients = {p: p.grad for p in self._exchanges}
        used = self._round(CANNOT if is_changed else SENDS_AGAIN if self._stale else PRESENT, gradients)
        for (parameter, exchange), users in zip(self._exchanges.items(), used):
            if users:
                self._take(parameter, exchange)
        if self.along is not None and self._has_root:
            self.along.take()
        self._again()
        self.steps += 1
        self.is_synchronized = True

    def tensors(self) -> list[Declared]:
        """All that a round consists of."""
        assert self._roll is not None
        return [self._roll.declared, *(exchange.declared for exchange in self._exchanges.values()), *self.absence.along]

    @property
    def has_sent(self) -> bool:
        """Whether gradients of the first step are on their way."""
        return bool(self._sent)

    def carry(self, along: Along) -> None:
        """The buffers of the model travel with its gradients from now on. All workers call it, before the first round."""
        self.along, self.absence.along = along, along.tensors()

    def receive(self) -> None:
        """In a worker that was restarted: ends the round that the others wait in, without contributing to it, and gets the state that they
        had before it. The others send their gradients again, and this worker's next round is the same one."""
        assert self._roll is not None
        codes: list[int] = []
        # If the process that failed had contributed all of a round, the others end that round and go on to the next one.
        while NEEDS_STATE not in codes:
            for exchange in self._exchanges.values():
                exchange.begin(None)
            if self.along is not None:
                self.along.begin(False)
            self._roll.begin(NEEDS_STATE, [0] * len(self._exchanges))
            codes = self._ended().codes
        # As the others have it, who take the buffers of the first of them.
        self.contributors = [rank for rank, one in enumerate(codes) if one]
        self._pass_on(codes, True)

    def _wait(self) -> None:
        """Waits for all tensors of a round but the roll."""
        for exchange in self._exchanges.values():
            exchange.wait()
        if self.along is not None:
            self.along.wait()

    def _ended(self) -> Called:
        """Waits for a round; raises InputError if a worker cannot take part."""
        assert self._roll is not None
        called = self._roll.end()
        self._wait()
        self.absence.sent.clear()
        if ABSENT in called.codes:
            self._again()
            refuse_absent(called, self.prefix)
        if CANNOT in called.codes:
            self._again()
            raise InputError(f"rank {called.codes.index(CANNOT)}: {_CHANGED}", "changed_gradient")
        return called

    def _pass_on(self, codes: list[int], takes: bool) -> None:
        """The state of training goes to workers that were restarted."""
        needy = codes.index(NEEDS_STATE)
        givers = [rank for rank, one in enumerate(codes) if one in (PRESENT, FORGETS, SENDS_AGAIN)]
        if takes and self._client.rank in givers:
            # This is the code of the process that failed. If the others take this worker for the giver, nobody sends the state, and all
            # workers get an error.
            givers.remove(self._client.rank)
        if not givers:
            raise OperationError(f"rank {needy} was restarted, and no worker is left that has the state of training", "no_state")
        if len({codes[rank] == FORGETS for rank in givers}) > 1:
            # Some workers are in a step that is over for the others.
            raise OperationError(f"rank {needy} was restarted in a round that some workers discard", "no_state")
        if self.transfer is None or self.is_within_step:
            missing = "without gradwire.torch.resume(), which all workers must call"
            reason = "within a step with a closure" if self.is_within_step else missing
            raise InputError(f"rank {needy} was restarted, and cannot get the state of training {reason}", "no_state")
        self.transfer(givers[0], takes)

    def _round(self, code: int, gradients: Gradients) -> list[int]:
        """Contributes what was not sent yet, waits, and returns how many workers have a gradient of each parameter. If a worker sends
        gradients again, all do: what was sent first is discarded."""
        assert self._roll is not None
        self.refuse_unresumed()
        while True:
            for parameter, exchange in self._exchanges.items():
                if exchange.handle is None:
                    self._begin(exchange, gradients.get(parameter))
            root = self.contributors[0]
            if self.along is not None:
                self.along.begin(self._client.rank == root)
                self.absence.sent.update(one.key for one in self.absence.along)
            if self.transfer is not None:
                # If this worker were in the roll and failed before its last gradient was sent, the others would take the zeros of the
                # process that replaces it for that gradient.
                self._wait()
            self._roll.begin(code, (gradients.get(p) is not None for p in self._exchanges))
            codes, present, used = self._ended()
            self._has_root = codes[root] != 0
            self.contributors = [rank for rank, one in enumerate(codes) if one] or self.contributors
            self._share = present / len(self.contributors)
            if NEEDS_STATE in codes:
                self._pass_on(codes, False)
            # A worker that gets the state takes part in the step that it belongs to, if there is one.
            if SENDS_AGAIN not in codes and (NEEDS_STATE not in codes or FORGETS in codes):
                self._is_over = not any(codes)
                return used
            code = PRESENT if code == SENDS_AGAIN else code

    def refuse_unresumed(self) -> None:
        """Raises InputError in a worker that was restarted and has not called `resume`."""
        if self._client._has_rejoined and self.transfer is None:
            raise InputError(
                "this worker replaces one that failed, and does not have the state of training: call "
                "gradwire.torch.resume(optimizer, model) before the first step, with a DistributedOptimizer or a DistributedDataParallel",
                "not_resumed",
            )

    def _take(self, parameter: torch.Tensor, exchange: Exchange) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            # What an optimizer keeps of sparse gradients, no dense one can be added to, if this worker does not use it in a later step.
            self.sparse.add(parameter)
        is_sparse = parameter in self.sparse
        if gradient is None or is_sparse:
            gradient = torch.empty_like(parameter)
        exchange.copy_to(gradient)
        if self._share != 1:
            # Servers divide by the number of workers that took part, those that have joined included.
            gradient.mul_(self._share)
        # The rows that any worker has used.
        parameter.grad = gradient.to_sparse(1) if is_sparse else gradient

    def mean_of(self, loss: Any) -> Any:
        """The mean of a number, or of a tensor of one, over the workers of the last round; None stays None."""
        if loss is None:
            return None
        if self._loss is None:
            declared = self._client.declare(f"{self.prefix}(loss)", 1, "float64", Assign(), mode="sync", backup_workers=0)
            self._loss = Exchange(self._client, declared, torch.zeros(1, dtype=torch.float64))
        total = torch.tensor([float(loss)], dtype=torch.float64)
        self._loss.begin(total)
        self._loss.end(total)
        mean = total.item() / len(self.contributors)
        return torch.full_like(loss.detach(), mean) if isinstance(loss, torch.Tensor) else mean

    def forget(self, is_begun: bool = False) -> None:
        """Ends a round in which any gradients were sent, here or (`is_begun`) by any worker, and discards its results. The others count as
        zeros."""
        if self._sent or is_begun:
            self._round(FORGETS, {p: sent.gradient for p, sent in self._sent.items()})
        # Backward passes that have not been enough to send anything count no more, either.
        self._again()
        self.is_synchronized = False

    def shadow(self) -> bool:
        """Takes part in a round without contributing to it, and returns whether any worker has contributed."""
        self.forget()
        self._round(0, {})
        return not self._is_over

    def _again(self) -> None:
        self._sent.clear()
        self._stale.clear()
        self._left = dict.fromkeys(self._exchanges, self._passes)

    def remove_hooks(self) -> None:
        """Stops averaging gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._names_taken.free()
