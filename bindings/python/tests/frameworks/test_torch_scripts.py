"""torch scripts as people write them: AMP, several models, sparse gradients, checkpointed blocks, states of many optimizers. What two workers
get is what one process with the data of both gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradwire
import gradwire.torch as gt
from gradwire.client import Client
from test_torch import SEEDING, assert_same, on_each

needs_scaler = pytest.mark.skipif(
    not hasattr(getattr(torch, "amp", None), "GradScaler"), reason="torch 2.3 has it for the CPU first"
)


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    # The seed is the process's, and workers are threads of it.
    with SEEDING:
        torch.manual_seed(seed)
        return make()


def line() -> nn.Linear:
    net = nn.Linear(4, 1, bias=False)
    nn.init.ones_(net.weight)
    return net


def is_fusable() -> bool:
    try:
        torch.optim.SGD(line().parameters(), 0.1, fused=True)
    except (TypeError, RuntimeError):
        return False
    return True


@needs_scaler
@pytest.mark.parametrize("way", ["alone", "synchronize", "unscale"])
@pytest.mark.parametrize("fused", [False, True])
def test_all_workers_skip_a_step_or_none_does(fused: bool, way: str) -> None:
    if fused and not is_fusable():
        pytest.skip("this torch has no fused SGD for the CPU")

    def work(client: Client) -> list[tuple[float, float]]:
        net, seen = line(), []
        inner = torch.optim.SGD(net.parameters(), 0.1, **({"fused": True} if fused else {}))
        optimizer = gt.DistributedOptimizer(inner, net.named_parameters(), client=client)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        # The gradient of rank 1 alone is infinite in the second step.
        for factor in (1.0, float("inf") if client.rank else 1.0, 1.0):
            # Of the model, so that the optimizer does not hear of it.
            net.zero_grad()
            scaler.scale(net(torch.ones(2, 4)).mean() * factor).backward()
            if way != "alone":
                optimizer.synchronize()
            if way == "unscale":
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            seen.append((round(net.weight[0, 0].item(), 6), scaler.get_scale()))
        return seen

    assert on_each(work) == [[(0.9, 1024.0), (0.9, 512.0), (0.8, 512.0)]] * 2


@needs_scaler
@pytest.mark.parametrize(
    "codec",
    [gradwire.Float16(), gradwire.BFloat16(), gradwire.OneBit(), gradwire.TopK(share=0.5), gradwire.Dither(bits=8)],
    ids=str,
)
def test_an_infinite_gradient_passes_through_every_codec(codec: Any) -> None:
    def work(client: Client) -> list[tuple[float, float]]:
        net, seen = line(), []
        optimizer = gt.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), client=client, codec=codec
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for factor in (float("nan" if client.rank else "inf"), 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale(net(torch.ones(2, 4)).mean() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append((net.weight[0].tolist(), scaler.get_scale()))
        return seen

    first, second = on_each(work)
    assert first == second
    assert first[0] == ([1.0] * 4, 512.0), "the step was skipped"
    assert all(np.isfinite(weights).all() and scale == 512.0 for weights, scale in first) and first[2] != first[0]


def test_what_a_codec_cuts_off_is_not_sent_later() -> None:
    def work(client: Client) -> list[float]:
        net, seen = line(), []
        optimizer = gt.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.0), net.named_parameters(), gt.Compression.fp16, client=client
        )
        for factor in (1e8, 1e8, 1024.0):
            optimizer.zero_grad()
            (net(torch.ones(2, 4)).mean() * factor).backward()
            optimizer.synchronize()
            seen.append(net.weight.grad[0, 0].item())
            optimizer.step()
        return seen

    assert on_each(work) == [[65504.0, 65504.0, 1024.0]] * 2


def net_of(seed: int, hidden: int = 4) -> nn.Module:
    net: nn.Module = seeded(seed, lambda: nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 4)))
    return net


def data(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(100 + 10 * step + rank))


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.1)


def wrapped(way: str, net: nn.Module, client: Client) -> tuple[nn.Module, Any]:
    if way == "optimizer":
        return net, gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client)
    return gt.DistributedDataParallel(net, client=client), sgd(net)


@pytest.mark.parametrize("hidden", [4, 5])
@pytest.mark.parametrize("way", ["optimizer", "model"])
def test_two_models_of_one_process_are_two(way: str, hidden: int) -> None:
    def losses(first: nn.Module, second: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
        return [first(inputs).pow(2).mean(), second(inputs + 1).abs().mean()]

    def work(client: Client) -> list[nn.Module]:
        nets = [net_of(1), net_of(2, hidden)]
        pairs = [wrapped(way, net, client) for net in nets]
        for step in range(5):
            for _, optimizer in pairs:
                optimizer.zero_grad()
            both = losses(pairs[0][0], pairs[1][0], data(client.rank, step))
            # Optimizers wait in step(), so each worker may have another order.
            for loss in both[::-1] if client.rank and way == "optimizer" else both:
                loss.backward()
            for _, optimizer in pairs:
                optimizer.step()
        return nets

    nets = [net_of(1), net_of(2, hidden)]
    optimizers = [sgd(net) for net in nets]
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for rank in range(2):
            for loss in losses(nets[0], nets[1], data(rank, step)):
                (loss / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
    for mine in on_each(work):
        for net, expected in zip(mine, nets):
            assert_same(net, expected)


def test_workers_at_different_models_are_told_at_once() -> None:
    def work(client: Client) -> None:
        nets = [gt.DistributedDataParallel(net_of(seed), client=client) for seed in (1, 2)]
        for net in nets:
            net(data(client.rank, 0)).sum().backward()
        with pytest.raises(gradwire.InputError, match="same order on all workers"):
            nets[client.rank](data(client.rank, 1)).sum().backward()

    on_each(work, deadlines__operation_ms=60_000)


@pytest.mark.parametrize("fails", [False, True])
def test_training_continues_after_workers_were_at_different_models(fails: bool) -> None:
    class Parts(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.parts = nn.ModuleList([net_of(seed), net_of(seed + 1)])

        def forward(self, inputs: torch.Tensor, part: int) -> torch.Tensor:
            return self.parts[part](inputs).pow(2).mean()

    def work(client: Client) -> list[nn.Module]:
        nets = [Parts(1), Parts(3)]
        models = [gt.DistributedDataParallel(net, client=client) for net in nets]
        optimizers = [sgd(net) for net in nets]
        for step in range(4):
            if step == 1:
                inputs = data(client.rank, step).requires_grad_()
                with pytest.raises(gradwire.InputError, match="same order on all workers"):
                    loss = models[client.rank](inputs, 0)
                    if fails and client.rank == 1:
                        # This backward does not come to its end, so that the next forward compares the models.
                        inputs.register_hook(lambda _: 1 / 0)
                        with pytest.raises(ZeroDivisionError):
                            loss.backward()
                        loss = models[1](data(1, step), 0)
                    loss.backward()
            for net, model, optimizer in zip(nets, models, optimizers):
                optimizer.zero_grad()
                # In step 1 not the part whose gradients were on their way.
                model(data(client.rank, step), step % 2).backward()
                optimizer.step()
        return nets

    nets: list[nn.Module] = [Parts(1), Parts(3)]
    optimizers = [sgd(net) for net in nets]
    for step in range(4):
        for net, optimizer in zip(nets, optimizers):
            optimizer.zero_grad()
            sum(net(data(rank, step), step % 2) / 2 for rank in range(2)).backward()
            optimizer.step()
    for mine in on_each(work, deadlines__operation_ms=60_000):
        for net, expected in zip(mine, nets):
            assert_same(net, expected)


def test_a_gan_learns_what_one_process_learns() -> None:
    def train(nets: list[nn.Module], optimizers: list[Any], inputs: Callable[[int], torch.Tensor]) -> list[nn.Module]:
        (generator, judge), (of_generator, of_judge) = nets, optimizers
        for step in range(4):
            of_judge.zero_grad()
            judge(inputs(step)).mean().backward()
            fake = generator(inputs(step))
            judge(fake.detach()).neg().mean().backward()
            of_judge.step()
            of_generator.zero_grad()
            judge(fake).pow(2).mean().backward()
            of_generator.step()
        return nets

    def work(client: Client) -> list[nn.Module]:
        nets = [net_of(1), net_of(2)]
        optimizers = [gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client) for net in nets]
        return train(nets, optimizers, lambda step: data(client.rank, step))

    nets = [net_of(1), net_of(2)]
    train(nets, [sgd(net) for net in nets], lambda step: torch.cat([data(rank, step) for rank in range(2)]))
    for mine in on_each(work):
        for net, expected in zip(mine, nets):
            assert_same(net, expected)


def test_names_are_free_again_when_hooks_are_removed() -> None:
    def work(client: Client) -> list[str]:
        net, seen = line(), []
        for _ in range(3):
            optimizer = gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client)
            net(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            optimizer.remove_hooks()
            seen.append(sorted(client._names.values()))
        return seen[-1]

    assert on_each(work) == [["gradient.(round).1", "gradient.weight"]] * 2


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, is_last: bool) -> None:
        super().__init__()
        self.block, self.last = seeded(0, lambda: (nn.Linear(4, 4), nn.Linear(4, 4)))
        self.reentrant, self.is_last = reentrant, is_last

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.is_last:
            inputs = self.last(inputs)
        for _ in range(2):
            inputs = checkpoint(self.block, inputs, use_reentrant=self.reentrant)
        return inputs if self.is_last else self.last(inputs)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", ["optimizer", "model"])
def test_checkpointed_blocks_are_exact_or_refused(way: str, reentrant: bool, is_last: bool) -> None:
    def inputs(rank: int) -> torch.Tensor:
        return (torch.ones(2, 4) * (rank + 1)).requires_grad_()

    def work(client: Client) -> list[torch.Tensor] | str:
        net, optimizer = wrapped(way, Checkpointed(reentrant, is_last), client)
        for _ in range(2):
            optimizer.zero_grad()
            try:
                net(inputs(client.rank)).sum().backward()
            except gradwire.InputError as error:
                return str(error)
            if way == "optimizer":
                optimizer.synchronize()
        return [p.grad for p in net.parameters()]

    expected = Checkpointed(False, is_last)
    sum(expected(inputs(rank)).sum() / 2 for rank in range(2)).backward()
    for seen in on_each(work):
        if way == "model" and reentrant and is_last:
            assert "use_reentrant=False" in seen
        else:
            for gradient, p in zip(seen, expected.parameters()):
                torch.testing.assert_close(gradient, p.grad)


@pytest.mark.parametrize("kind", ["sgd", "adam", "async", "one", "model"])
def test_sparse_gradients_are_averaged(kind: str) -> None:
    def embedding(sparse: bool) -> nn.Embedding:
        net: nn.Embedding = seeded(0, lambda: nn.Embedding(10, 4, sparse=sparse))
        return net

    def inner(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam(list(net.parameters()), 0.1) if kind == "adam" else torch.optim.SGD(net.parameters(), 0.1)

    def work(client: Client) -> nn.Module:
        net = embedding(sparse=kind != "one" or client.rank == 0)
        if kind == "model":
            model, optimizer = gt.DistributedDataParallel(net, client=client), inner(net)
        else:
            mode = {"mode": "async"} if kind == "async" else {}
            model, optimizer = net, gt.DistributedOptimizer(inner(net), net.named_parameters(), client=client, **mode)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([1, 1, 2 + client.rank])).sum().backward()
            optimizer.step()
            # The servers' weights after the steps of both.
            client.barrier()
        if kind == "async":
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
        return net

    expected = embedding(sparse=True)
    optimizer = inner(expected)
    for _ in range(2):
        optimizer.zero_grad()
        share = 1 if kind == "async" else 2
        sum(expected(torch.tensor([1, 1, 2 + rank])).sum() / share for rank in range(2)).backward()
        optimizer.step()
    for net in on_each(work):
        assert_same(net, expected)


def test_a_worker_may_use_an_embedding_in_some_steps_only() -> None:
    """A dense gradient cannot be added to the momentum of sparse ones."""

    def train(net: nn.Embedding, optimizer: Any, ranks: range) -> nn.Embedding:
        for step in range(3):
            optimizer.zero_grad(set_to_none=True)
            for rank in ranks:
                # Rank 1 uses no row in step 1.
                if (step, rank) != (1, 1):
                    (net(torch.tensor([1, 2 + rank])).sum() / len(ranks)).backward()
            optimizer.step()
        return net

    def work(client: Client) -> nn.Module:
        net = seeded(0, lambda: nn.Embedding(10, 4, sparse=True))
        inner = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        optimizer = gt.DistributedOptimizer(inner, net.named_parameters(), client=client)
        return train(net, optimizer, range(client.rank, client.rank + 1))

    expected = seeded(0, lambda: nn.Embedding(10, 4, sparse=True))
    train(expected, torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9), range(2))
    for net in on_each(work):
        assert_same(net, expected)


STATES: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=np.float32(0.1), momentum=0.9),  # type: ignore[arg-type]
    "adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3), amsgrad=True),
    "adagrad": torch.optim.Adagrad,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
}


def flat(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: flat(one) for key, one in value.items()}
    return [type(value), *map(flat, value)] if isinstance(value, (list, tuple)) else (type(value), value)


@pytest.mark.parametrize("root", [0, 1])
def test_the_state_of_every_optimizer_is_broadcast(root: int) -> None:
    def work(client: Client) -> dict[str, Any]:
        seen = {}
        for name, make in STATES.items():
            parameters = [nn.Parameter(torch.full(shape, 1.0 + client.rank)) for shape in ((3,), (2, 2))]
            optimizer = make(parameters)

            def closure() -> float:
                optimizer.zero_grad()
                loss = sum((p * p).sum() for p in parameters)
                loss.backward()
                return loss

            if client.rank == root:
                optimizer.step(closure)
            gt.broadcast_optimizer_state(optimizer, root, prefix=name, client=client)
            seen[name] = flat(optimizer.state_dict())
        return seen

    first, second = on_each(work)
    assert first == second and all(entry["state"] for entry in first.values())


def test_objects_arrive_as_they_are_or_are_refused_everywhere() -> None:
    values: list[Any] = [
        {1: (2, 3), "a": None, (4, "b"): [True, 1.5, float("inf"), -0.0]},
        {"s": {1, 2}, "f": frozenset("x"), "b": b"\0\xff", "c": 1 + 2j, "big": 1 << 100},
        {"t": torch.tensor([[1, 2]]), "e": torch.empty(0, 3), "n": np.arange(6, dtype=np.int16).reshape(2, 3), "z": np.float32(0.1)},
        torch.Size([2, 3]),
        torch.tensor([-0.0, float("nan")], dtype=torch.bfloat16),
    ]

    class Own:
        pass

    def work(client: Client) -> list[Any]:
        seen = [gt.broadcast_object(value if client.rank else None, 1, client=client) for value in values]
        with pytest.raises(gradwire.InputError, match=r"rank 1: the value\['a'\]\[1\] is a .*Own, which does not travel"):
            gt.broadcast_object({"a": [1, Own()]} if client.rank else None, 1, client=client)
        again: list[Any] = []
        again.append(again)
        with pytest.raises(gradwire.InputError, match="contains itself"):
            gt.broadcast_object(again, 0, client=client)
        return seen

    for seen in on_each(work):
        assert repr(flat(seen)) == repr(flat(values))
