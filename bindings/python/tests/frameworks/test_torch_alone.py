"""torch: what two workers get is what one process with the data of both gets. Each case is one training, which runs in one process, and on both
workers in each way. docs/torch.md has the table of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Union

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradwire
import gradwire.torch as gt
from conftest import together
from gradwire.client import Client
from test_torch import SEEDING

PAGE = Path(__file__).parents[4] / "docs/torch.md"
HAS_SCALER = hasattr(getattr(torch, "amp", None), "GradScaler")
# Trainings that end at other steps on each worker have so many batches.
BATCHES = (4, 2)
Loss = Callable[[torch.Tensor], torch.Tensor]


class Run:
    """Where a case runs: in one process with the data of all ranks, or on a worker."""

    def __init__(self, way: str, client: Client | None = None) -> None:
        self.way, self.client = way, client
        self.ranks = range(2) if client is None else [client.rank]
        self._wrapped: list[gt.DistributedOptimizer] = []
        # Scripts keep their models, too: one that is gone takes part in no round.
        self._models: list[nn.Module] = []

    def wrap(self, net: nn.Module, optimizer: Any) -> tuple[Any, Any]:
        if self.client is None:
            return net, optimizer
        if self.way == "model":
            self._models.append(gt.DistributedDataParallel(net, client=self.client))
            return self._models[-1], optimizer
        self._wrapped.append(gt.DistributedOptimizer(optimizer, net.named_parameters(), client=self.client))
        return net, self._wrapped[-1]

    def synchronize(self) -> None:
        """Where a script changes gradients."""
        for optimizer in self._wrapped:
            optimizer.synchronize()

    def unsynced(self, net: Any) -> Any:
        return net.no_sync() if isinstance(net, gt.DistributedDataParallel) else nullcontext()

    def passes(self, optimizer: Any, count: int) -> None:
        if optimizer in self._wrapped:
            optimizer.set_backward_passes_per_step(count)

    def loss(self, net: Any, step: int, of: Loss = lambda out: out.pow(2).mean(), shape: tuple[int, ...] = (8, 4)) -> torch.Tensor:
        """The mean of the losses of the workers that have a batch. Buffers are those after rank 0's."""
        ranks = [rank for rank in self.ranks if step < 100 or step - 100 < BATCHES[rank]]
        before = [one.clone() for one in net.buffers()]
        losses, after = [], before
        for rank in ranks:
            if self.client is None:
                for one, old in zip(net.buffers(), before):
                    one.data.copy_(old)
            losses.append(of(net(torch.randn(*shape, generator=torch.Generator().manual_seed(10 * step + rank)))))
            after = [one.clone() for one in net.buffers()] if rank == ranks[0] else after
        if self.client is None:
            for one, new in zip(net.buffers(), after):
                one.data.copy_(new)
        return sum(losses[1:], losses[0]) / len(losses)


def seeded(make: Callable[[], Any]) -> Any:
    with SEEDING:
        torch.manual_seed(0)
        return make()


def layers(*more: nn.Module) -> nn.Sequential:
    net: nn.Sequential = seeded(lambda: nn.Sequential(nn.Linear(4, 6), *more, nn.Tanh(), nn.Linear(6, 4)))
    return net


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    # What moves a parameter whose gradient is 0, but none without a gradient.
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.1)


def train(run: Run, net: nn.Module, change: Callable[[int, nn.Module, Any], None] = lambda *_: None, steps: Any = range(4), **words: Any) -> nn.Module:
    model, optimizer = run.wrap(net, sgd(net))
    for step in steps:
        change(step, net, optimizer)
        optimizer.zero_grad(set_to_none=True)
        run.loss(model, step, **words).backward()
        optimizer.step()
    return net


def scaled(run: Run) -> nn.Module:
    net = layers()
    model, optimizer = run.wrap(net, sgd(net))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        factor = float("inf") if step == 1 else 1.0
        scaler.scale(run.loss(model, step) * factor).backward()
        run.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return net


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = layers()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: torch.Tensor = self.net(inputs)
        return out.float()


def accumulated(run: Run, announced: bool) -> nn.Module:
    net = layers()
    model, optimizer = run.wrap(net, sgd(net))
    if announced:
        run.passes(optimizer, 2)
    for step in range(0, 6, 2):
        optimizer.zero_grad(set_to_none=True)
        with run.unsynced(model) if announced else nullcontext():
            run.loss(model, step).backward()
        run.loss(model, step + 1).backward()
        optimizer.step()
    return net


def clipped(run: Run) -> nn.Module:
    net = layers()
    model, optimizer = run.wrap(net, sgd(net))
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        run.loss(model, step).backward()
        run.synchronize()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return net


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = layers()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.block, checkpoint(self.block, inputs, use_reentrant=False), use_reentrant=False)
        return out


def twice(run: Run) -> nn.Module:
    net = layers(nn.BatchNorm1d(6))
    model, optimizer = run.wrap(net, sgd(net))
    for step in range(0, 6, 2):
        optimizer.zero_grad(set_to_none=True)
        (run.loss(model, step) + run.loss(model, step + 1, lambda out: out.abs().mean())).backward()
        optimizer.step()
    return net


def gan(run: Run) -> nn.Module:
    maker, judge = layers(), layers()
    (making, of_maker), (judging, of_judge) = run.wrap(maker, sgd(maker)), run.wrap(judge, sgd(judge))
    for step in range(3):
        of_judge.zero_grad(set_to_none=True)
        run.loss(judging, step).backward()
        run.loss(lambdas(lambda inputs: judging(making(inputs).detach())), step, lambda out: -out.mean()).backward()
        of_judge.step()
        of_maker.zero_grad(set_to_none=True)
        run.loss(lambdas(lambda inputs: judging(making(inputs))), step).backward()
        of_maker.step()
    return nn.ModuleList([maker, judge])


def lambdas(call: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    net = nn.Module()
    net.forward = call  # type: ignore[assignment]
    return net


def tied(run: Run) -> nn.Module:
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)))
    net[2].weight = net[0].weight
    return train(run, net)


def frozen(run: Run, at_first: bool, later: bool) -> nn.Module:
    def change(step: int, net: nn.Module, _: Any) -> None:
        if step == 2:
            net.get_submodule("0").requires_grad_(later)

    net = layers()
    net[0].requires_grad_(not at_first)
    return train(run, net, change)


def grouped(run: Run) -> nn.Module:
    net = layers()
    net[0].requires_grad_(False)
    model, optimizer = run.wrap(net, torch.optim.SGD(net[2].parameters(), 0.1, momentum=0.9))
    for step in range(4):
        if step == 2:
            net[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.01})
        optimizer.zero_grad(set_to_none=True)
        run.loss(model, step).backward()
        optimizer.step()
    return net


class Parts(nn.Module):
    """Has a part for each sign of the data's sum, which differs between workers, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([layers(), layers(), layers()])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.parts[int(inputs.sum() > 0)](inputs)
        return out


class Odd(nn.Module):
    """A complex parameter, an empty one, and buffers of types that cannot be averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.empty = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j, 1j, 3.0])), nn.Parameter(torch.empty(0, 3))
        self.register_buffer("phase", torch.ones(4, dtype=torch.complex64))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.phase *= inputs.mean().sign() * 1j
        # The gradient of what is conjugated is a conjugate view.
        return (inputs * self.turn.conj() * 1j).abs() + self.empty.sum()


def lbfgs(run: Run) -> nn.Module:
    net = layers()
    model, optimizer = run.wrap(net, torch.optim.LBFGS(net.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe"))
    for step in range(2):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = run.loss(model, step)
            loss.backward()
            return loss

        optimizer.step(closure)
    return net


def uneven(run: Run) -> nn.Module:
    count = max(BATCHES[rank] for rank in run.ranks)
    net = train(run, layers(nn.BatchNorm1d(6)), steps=range(100, 100 + count))
    if run.client is not None:
        assert gt.join(client=run.client) == 0
    return net


class Case(NamedTuple):
    what: str
    train: Callable[[Run], nn.Module]
    ways: tuple[str, ...] = ("optimizer", "model")


CASES = [
    Case("momentum and weight decay", lambda run: train(run, layers())),
    *([Case("GradScaler, a step with inf, `unscale_`, clipping", scaled)] if HAS_SCALER else []),
    Case("autocast to bfloat16", lambda run: train(run, Halved(), steps=range(2))),
    Case("accumulation: two backward passes before each step", lambda run: accumulated(run, False)),
    Case("the same, announced (`backward_passes_per_step=2`, `no_sync()`)", lambda run: accumulated(run, True)),
    Case("clipping (after `synchronize()` of the optimizer)", clipped),
    Case("a block that is checkpointed twice", lambda run: train(run, Checkpointed())),
    Case("BatchNorm", lambda run: train(run, layers(nn.BatchNorm1d(6)))),
    Case("two forward passes before one backward, BatchNorm", twice),
    Case("a GAN's loop", gan),
    Case("tied weights", tied),
    Case("layers that are frozen at first", lambda run: frozen(run, True, False)),
    Case("layers that are frozen later", lambda run: frozen(run, False, False)),
    Case("layers that are unfrozen later", lambda run: frozen(run, True, True)),
    Case("`add_param_group` later", grouped),
    Case("parts that some workers, or all, do not use", lambda run: train(run, Parts())),
    Case("channels-last", lambda run: train(run, seeded(lambda: nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)), shape=(2, 3, 6, 6))),
    Case("complex and empty parameters, complex and integer buffers", lambda run: train(run, Odd())),
    Case("LBFGS, whose closure is averaged", lbfgs, ("optimizer",)),
    Case("uneven inputs with `join()`", uneven),
]
WAYS = {"optimizer": "DistributedOptimizer", "model": "DistributedDataParallel"}


def table() -> str:
    rows = [f"| {case.what} | {' | '.join('same' if way in case.ways else 'no' for way in WAYS)} |" for case in CASES]
    return "\n".join([f"| training | {' | '.join(f'`{name}`' for name in WAYS.values())} |", "| --- | --- | --- |", *rows])


State = dict[str, torch.Tensor]


def state_of(net: nn.Module, way: str) -> State:
    """What the way keeps alike: an optimizer has no buffers."""
    names = dict(net.named_parameters()) if way == "optimizer" else net.state_dict()
    return {name: one.detach().clone() for name, one in names.items()}


@pytest.fixture(scope="module", params=["shm", "tcp"])
def trained(request: pytest.FixtureRequest) -> dict[tuple[str, str], list[Union[State, BaseException]]]:
    """What both workers get in all cases. A case that fails ends those after it."""
    with gradwire.launch(servers=2, workers=2, transport=request.param, deadlines__operation_ms=60_000) as cluster:

        def work(rank: int) -> dict[tuple[str, str], Any]:
            seen: dict[tuple[str, str], Any] = {}
            with cluster.connect(node__rank=rank) as client:
                for case in CASES:
                    for way in case.ways:
                        try:
                            seen[case.what, way] = state_of(case.train(Run(way, client)), way)
                        except BaseException as error:
                            seen[case.what, way] = error
                            return seen
            return seen

        first, second = together([lambda rank=rank: work(rank) for rank in range(2)], patience_s=600)
    return {key: [one[key] for one in (first, second) if key in one] for key in [*first, *second]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_workers_get_what_one_process_gets(case: Case, trained: Any) -> None:
    for way in case.ways:
        net = case.train(Run(way))
        expected, learned = state_of(net, way), dict(net.named_parameters())
        got = trained.get((case.what, way), [])
        for rank, state in enumerate(got):
            if isinstance(state, BaseException):
                raise AssertionError(f"{way}, rank {rank}") from state
            for name, mine in state.items():
                # The buffers of rank 1 become rank 0's at the next forward.
                if rank == 0 or name in learned:
                    torch.testing.assert_close(mine, expected[name], rtol=1e-5, atol=1e-6, msg=lambda text: f"{way} {name}: {text}")
        assert len(got) == 2, "a case before this one failed"


@pytest.mark.skipif(not HAS_SCALER, reason="one row needs torch 2.3")
def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text(), table()
