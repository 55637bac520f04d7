"""torch: workers whose data ends at different steps. Means are over those that have data; all end with the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.join import Join

import gradwire
import gradwire.torch as gt
from gradwire.client import Client
from gradwire.torch._state import state_of
from test_torch import assert_same, copied, join_torch_s_group, loss_of, model, on_each

COUNTS = (1, 4, 2)


def steps_of(net: nn.Module, optimizer: Any, counts: tuple[int, ...], share: int | None = None) -> nn.Module:
    """One process with the data of all: the mean over those that have data, or a share that stays."""
    for step in range(max(counts)):
        ranks = [rank for rank, count in enumerate(counts) if step < count]
        optimizer.zero_grad()
        sum(loss_of(net, step, rank) / (share or len(ranks)) for rank in ranks).backward()
        optimizer.step()
    return net


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


@pytest.mark.parametrize("driver", ["shm", "tcp"])
def test_means_are_over_the_workers_that_have_data(driver: str) -> None:
    def work(client: Client) -> Any:
        net, seen = model(), []
        optimizer = gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client)
        for _ in range(2):
            for step in range(COUNTS[client.rank]):
                optimizer.zero_grad()
                loss_of(net, step, client.rank).backward()
                optimizer.step()
                seen.append(list(optimizer.contributors))
            assert gt.join(client=client) == 1
        return net, optimizer.state_dict()["state"], seen

    ended = on_each(work, workers=3, transport=driver)
    net = model()
    optimizer = sgd(net)
    for _ in range(2):
        steps_of(net, optimizer, COUNTS)
    for mine, state, _ in ended:
        assert_same(mine, net)
        for at, one in optimizer.state_dict()["state"].items():
            for name, value in one.items():
                torch.testing.assert_close(state[at][name], value, rtol=1e-4, atol=1e-6)
    assert [seen for _, _, seen in ended] == [[[0, 1, 2]] * 2, [[0, 1, 2], [1, 2], [1], [1]] * 2, [[0, 1, 2], [1, 2]] * 2]


def test_several_models_with_different_numbers_of_steps() -> None:
    counts = (1, 3)

    def train(nets: list[nn.Module], optimizers: list[Any], ranks: range) -> list[nn.Module]:
        for step in range(max(counts[rank] for rank in ranks)):
            present = [rank for rank in ranks if step < counts[rank]]
            # Two steps of the second for each of the first.
            for at in (0, 1, 1):
                optimizers[at].zero_grad()
                sum(loss_of(nets[at], step + 10 * at, rank) / len(present) for rank in present).backward()
                optimizers[at].step()
        return nets

    def work(client: Client) -> list[nn.Module]:
        nets = [model(1), model(2)]
        optimizers = [gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client) for net in nets]
        train(nets, optimizers, range(client.rank, client.rank + 1))
        assert gt.join(client=client) == 1
        # A wrapper that has ended has no rounds.
        optimizers[0].remove_hooks()
        assert gt.join(client=client) == 1
        return nets

    ended = on_each(work)
    nets = [model(1), model(2)]
    train(nets, [sgd(net) for net in nets], range(2))
    for mine in ended:
        for one, expected in zip(mine, nets):
            assert_same(one, expected)


def wrapped(way: str, client: Client, seed: int) -> tuple[nn.Module, Any]:
    net = model(seed)
    if way == "optimizer":
        return net, gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client)
    net = gt.DistributedDataParallel(nn.Sequential(net, nn.BatchNorm1d(10)), client=client)
    return net, sgd(net)


def take_a_step(pair: tuple[nn.Module, Any], rank: int, step: int = 0) -> None:
    net, optimizer = pair
    optimizer.zero_grad()
    loss_of(net, step, rank).backward()
    optimizer.step()


# What rank 0 does with the wrapper that rank 1 no longer has.
@pytest.mark.parametrize("does", ["joins", "steps"])
@pytest.mark.parametrize("way", ["optimizer", "model", "hooks"])
def test_a_wrapper_that_one_worker_has_dropped_is_an_error_of_all(way: str, does: str) -> None:
    prefix = "model.gradient." if way == "model" else "gradient."

    def work(client: Client) -> list[torch.Tensor]:
        # Another wrapper, which both have to the end.
        pairs = [wrapped("optimizer" if way == "hooks" else way, client, seed) for seed in (1, 2)]
        for pair in pairs:
            take_a_step(pair, client.rank)
        net = pairs[1][0]
        before = [one.clone() for one in net.buffers()]
        if client.rank == 1:
            if way == "hooks":
                pairs[1][1].remove_hooks()
            else:
                # A model wrapper is the net itself.
                net = nn.Identity()
                pair = pairs.pop()
                del pair
        with pytest.raises(gradwire.InputError, match=rf"rank 1 no longer has the wrapper with prefix '{prefix}\(2\).'"):
            if client.rank == 0 and does == "steps":
                take_a_step(pairs[1], 0)
            gt.join(client=client)
        if client.rank == 0:
            after = list(net.buffers())
            assert len(after) == (3 if way == "model" else 0)
            # A forward begins with the buffers of rank 0, and changes them once it has them.
            assert all(torch.equal(mine, one) for mine, one in zip(before, after)), "the buffers have changed"
        client.barrier()
        return before

    on_each(work, deadlines__operation_ms=60_000)


@pytest.mark.parametrize("way", ["optimizer", "model"])
def test_wrappers_that_all_workers_have_dropped_are_over(way: str) -> None:
    counts = (1, 3)

    def work(client: Client) -> tuple[nn.Module, int]:
        dropped = wrapped(way, client, 1)
        take_a_step(dropped, client.rank)
        dropped[0].zero_grad()
        if client.rank == 1 and way == "optimizer":
            # Its gradients are on their way, and those of rank 0 are not.
            loss_of(dropped[0], 1, 1).backward()
        del dropped
        net = model()
        optimizer = gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client)
        for turn in range(2):
            for step in range(counts[client.rank]):
                take_a_step((net, optimizer), client.rank, step)
            assert gt.join(client=client) == 1
        # The names of a wrapper whose hooks were removed are those of the next one.
        optimizer.remove_hooks()
        optimizer = gt.DistributedOptimizer(sgd(net), net.named_parameters(), client=client)
        for step in range(counts[client.rank]):
            take_a_step((net, optimizer), client.rank, step)
        assert gt.join(client=client) == 1
        return net, len(state_of(client).uneven)

    ended = on_each(work, deadlines__operation_ms=60_000)
    net = model()
    optimizer = sgd(net)
    for _ in range(2):
        steps_of(net, optimizer, counts)
    steps_of(net, sgd(net), counts)
    for mine, known in ended:
        assert_same(mine, net)
        assert known == 1, "what is over on all workers is not asked for again"


# torch's context needs torch's process group, of which a process has one.


def joined_worker(client: Client, store: str) -> list[nn.Module]:
    """For `launch`: torch's context with both of our wrappers, and with torch's own and our hook."""
    join_torch_s_group(client, store)
    nets = [model(), model(), model()]
    ours, theirs = gt.DistributedDataParallel(nets[0], client=client), nn.parallel.DistributedDataParallel(nets[2])
    theirs.register_comm_hook(gt.DdpState(client), gt.ddp_hook)
    wrapped = gt.DistributedOptimizer(sgd(nets[1]), nets[1].named_parameters(), client=client)
    for joinable, net, optimizer in [(ours, ours, sgd(nets[0])), (wrapped, nets[1], wrapped), (theirs, theirs, sgd(nets[2]))]:
        with Join([joinable]):
            for step in range(3 if client.rank else 1):
                optimizer.zero_grad()
                loss_of(net, step, client.rank).backward()
                optimizer.step()
    return [copied(net) for net in nets]


def test_torch_s_context_joins_workers(tmp_path: Any) -> None:
    ended = gradwire.launch(joined_worker, str(tmp_path / "store"), servers=1, workers=2)
    for at, share in enumerate([None, None, 2]):
        net = model()
        expected = steps_of(net, sgd(net), (1, 3), share)
        for nets in ended:
            # Of torch's own, a worker that has joined keeps no state.
            assert_same(nets[at], expected)
