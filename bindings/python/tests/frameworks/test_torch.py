"""torch: the wrapper and the hook give what one process with all the data gives; broadcasts reach everyone."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
import gradwire.torch as gt
from conftest import together
from gradwire.client import Client
from gradwire.torch import _exchange

WORKERS = 2
SEEDING = threading.Lock()


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    # The seed is the process's, and workers are threads of it.
    with SEEDING:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(30, 50), nn.ReLU(), nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 10))
    return net.to(dtype)


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 30, generator=random).to(dtype), torch.randint(0, 10, (16,), generator=random)


def loss_of(net: nn.Module, step: int, rank: int) -> torch.Tensor:
    data, labels = batch(step, rank, next(net.parameters()).dtype)
    return nn.functional.cross_entropy(net(data), labels)


def alone(steps: int, make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype = torch.float32) -> nn.Module:
    """What one process learns from all workers' data."""
    net = model(dtype=dtype)
    optimizer = make(net.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        sum(loss_of(net, step, rank) / WORKERS for rank in range(WORKERS)).backward()
        optimizer.step()
    return net


def on_each(work: Callable[[Client], Any], workers: int = WORKERS, **settings: Any) -> list[Any]:
    """What each worker's thread returns."""
    with gradwire.launch(servers=2, workers=workers, **settings) as cluster:

        def run(rank: int) -> Any:
            with cluster.connect(node__rank=rank) as client:
                return work(client)

        return together([lambda rank=rank: run(rank) for rank in range(workers)])


def copied(net: nn.Module) -> nn.Module:
    """The same weights without hooks, which do not travel between processes."""
    plain = model()
    plain.load_state_dict(net.state_dict())
    return plain


def assert_same(one: nn.Module, other: nn.Module, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters()):
        assert torch.allclose(mine, theirs, rtol=rtol, atol=atol), name


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.001),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("driver", ["shm", "tcp"])
def test_wrapped_optimizers_learn_as_one_process_does(name: str, driver: str) -> None:
    make = OPTIMIZERS[name]

    def work(client: Client) -> nn.Module:
        net = model(seed=client.rank)
        gt.broadcast_parameters(net.state_dict(), client=client)
        optimizer = gt.DistributedOptimizer(make(net.parameters()), net.named_parameters(), client=client)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        for step in range(20):
            optimizer.zero_grad()
            loss_of(net, step, client.rank).backward()
            optimizer.step()
            schedule.step()
        return net

    nets, expected = on_each(work, transport=driver), alone(20, make)
    for net in nets:
        assert_same(net, expected)
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters()):
        assert torch.equal(mine, theirs), "workers differ"


def test_gradients_can_be_clipped_and_gathered_over_passes() -> None:
    def train(net: nn.Module, optimizer: Any, ranks: list[int], synchronize: Callable[[], None]) -> nn.Module:
        for step in range(10):
            optimizer.zero_grad()
            for half in range(2):
                loss = sum(loss_of(net, 2 * step + half, rank) for rank in ranks)
                (loss / len(ranks)).backward()
            synchronize()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
        return net

    def work(client: Client) -> nn.Module:
        net = model()
        inner = torch.optim.SGD(net.parameters(), 0.1)
        optimizer = gt.DistributedOptimizer(inner, net.named_parameters(), client=client, backward_passes_per_step=2)
        return train(net, optimizer, [client.rank], optimizer.synchronize)

    reference = model()
    plain = torch.optim.SGD(reference.parameters(), 0.1)
    train(reference, plain, list(range(WORKERS)), lambda: None)
    for net in on_each(work):
        assert_same(net, reference)


class Branches(nn.Module):
    """Uses another part on each worker."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(WORKERS + 1))

    def forward(self, data: torch.Tensor, part: int) -> torch.Tensor:
        return self.parts[part](data).sum()


def test_parts_that_one_worker_uses_count_as_zeros_of_the_other() -> None:
    def work(client: Client) -> list[Any]:
        net = Branches()
        optimizer = gt.DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0), net.named_parameters(), client=client)
        net(torch.ones(2, 4), client.rank).backward()
        optimizer.synchronize()
        return [None if part.bias.grad is None else part.bias.grad.tolist() for part in net.parts]

    for gradients in on_each(work):
        assert gradients == [[1.0] * 4, [1.0] * 4, None], "what nobody uses has no gradient, as in one process"


def test_misuse_is_told() -> None:
    def work(client: Client) -> None:
        net = model()
        inner = torch.optim.SGD(net.parameters(), 0.1)
        with pytest.raises(gradwire.InputError):
            gt.DistributedOptimizer(inner, list(net.named_parameters())[1:], client=client)
        with pytest.raises(gradwire.InputError):
            gt.DistributedOptimizer(inner, [("same", p) for p in net.parameters()], client=client)
        optimizer = gt.DistributedOptimizer(inner, net.named_parameters(), client=client)
        with pytest.raises(ValueError, match="more than one parameter group"):
            optimizer.add_param_group({"params": list(net.parameters())})
        client.barrier()

    on_each(work)


def test_halves_are_averaged_as_halves() -> None:
    def work(client: Client) -> tuple[torch.Tensor, torch.Tensor]:
        net = model(dtype=torch.bfloat16)
        optimizer = gt.DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0), net.named_parameters(), client=client)
        loss_of(net, 0, client.rank).backward()
        mine = net[0].weight.grad.clone()
        optimizer.synchronize()
        return mine, net[0].weight.grad.clone()

    (first, mean), (second, same) = on_each(work)
    assert torch.equal(mean, same) and mean.dtype == torch.bfloat16
    assert torch.equal(mean, ((first.float() + second.float()) / 2).bfloat16())


def test_broadcasts_reach_everyone_again_and_again() -> None:
    def work(client: Client) -> list[dict[str, torch.Tensor]]:
        seen = []
        net = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)).to(torch.float32)
        for turn in range(3):
            with torch.no_grad():
                for one in net.state_dict().values():
                    one.copy_(torch.full_like(one, 10 * turn + client.rank))
            state = {**net.state_dict(), "flags": torch.tensor([True, bool(client.rank)]), "half": torch.ones(3).half() * turn}
            gt.broadcast_parameters(state, client=client)
            seen.append({name: one.clone() for name, one in state.items()})
        gt.broadcast_parameters(net.named_parameters(), client=client, prefix="again.")
        return seen

    for seen in on_each(work):
        for turn, state in enumerate(seen):
            assert state.pop("flags").tolist() == [True, False]
            assert (state.pop("half") == turn).all()
            assert len(state) == 7 and all((one == 10 * turn).all() for one in state.values())


def test_an_optimizer_s_state_is_broadcast() -> None:
    def work(client: Client) -> dict[str, Any]:
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.5 if client.rank else 0.001, betas=(0.8, 0.9))
        if client.rank == 0:
            for step in range(3):
                optimizer.zero_grad()
                loss_of(net, step, 0).backward()
                optimizer.step()
        for _ in range(2):
            gt.broadcast_optimizer_state(optimizer, client=client)
        assert gt.broadcast_object({"epoch": 7} if client.rank == 0 else None, client=client) == {"epoch": 7}
        return copy.deepcopy(optimizer.state_dict())

    first, second = on_each(work)
    assert second["param_groups"] == first["param_groups"] and second["param_groups"][0]["lr"] == 0.001
    assert first["state"].keys() == second["state"].keys() and len(first["state"]) == 6
    for index, entry in first["state"].items():
        assert entry.keys() == second["state"][index].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in entry.items():
            assert torch.equal(value, second["state"][index][name])


@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_whose_root_has_left_fails_at_once(root: int) -> None:
    def work(client: Client) -> Any:
        if client.rank == root:
            return None
        started, net = time.monotonic(), model()
        before = copy.deepcopy(net.state_dict())
        with pytest.raises(gradwire.OperationError, match=f"worker {root} has left"):
            gt.broadcast_object(None, root, client=client)
        with pytest.raises(gradwire.OperationError, match=f"worker {root} has left"):
            gt.broadcast_parameters(net.state_dict(), root, client=client)
        assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())
        return time.monotonic() - started

    assert on_each(work)[1 - root] < 15


def test_torch_tensors_are_arrays() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        tensor = client.declare("w", (20, 30), torch.float32, optimizer=gradwire.Assign())
        mine = torch.randn(20, 30)
        for _ in range(3):
            assert np.array_equal(client.push_pull(tensor, mine).wait(), mine.numpy())
        assert client.stats()["arrays_in_place"] == 2, "the second push is sent from where it lies"
        into = torch.zeros(20, 30)
        assert client.pull(tensor, out=into).wait() is into and torch.equal(into, mine)
        library = gt.empty(client, (20, 30))
        library.copy_(mine * 2)
        assert client.push_pull(tensor, library, out=library).wait() is library and torch.equal(library, mine * 2)
        for wrong in [mine.t(), mine.double(), mine[:, ::2]]:
            with pytest.raises(gradwire.InputError):
                client.push(tensor, wrong)
        half = client.declare("h", 5, torch.bfloat16, optimizer=gradwire.Assign())
        sent, got = torch.arange(5).bfloat16(), torch.zeros(5).bfloat16()
        client.push_pull(half, sent, out=got).wait()
        assert torch.equal(sent, got)


def test_a_tensor_whose_storage_was_resized_is_registered_anew() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        tensor = client.declare("w", 1000, optimizer=gradwire.Assign())
        # Held twice: what only one variable has counts as let go of.
        held = [torch.ones(1000)]
        mine = held[0]
        for _ in range(2):
            client.push_pull(tensor, mine).wait()
        assert client.stats()["arrays_registered"] == 1
        # The latter before torch 2.
        storage = mine.untyped_storage() if hasattr(mine, "untyped_storage") else mine.storage().untyped()
        storage.resize_(8000)
        mine.fill_(2)
        assert (client.push_pull(tensor, mine).wait() == 2).all()
        stats = client.stats()
        assert (stats["arrays_remembered"], stats["arrays_copied"], stats["arrays_registered"]) == (1, 2, 0)


def test_a_tensor_that_torch_lets_go_of_is_let_go_of_here() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        tensor = client.declare("w", 1000, optimizer=gradwire.Assign())
        parameter = nn.Parameter(torch.ones(1000))
        for turn in range(3):
            parameter.grad = None
            (parameter * (turn + 1)).sum().backward()
            for _ in range(2):
                assert (client.push_pull(tensor, parameter.grad).wait() == turn + 1).all()
        parameter.grad = None
        assert client.stats()["arrays_remembered"] == 0


# DDP has one process group a process, so its workers are processes. What they run is a module's.


def join_torch_s_group(client: Client, store: str) -> None:
    """torch's own process group, to the end of the process. Whoever destroys one holds Python's lock, and waits for a thread that may
    need this lock to free the last gradient (torch 1.13 with DDP: both waited for ever)."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=client.rank, world_size=client.workers)


def ddp_worker(client: Client, store: str, dtype: str) -> list[np.ndarray]:
    """For `Cluster.run`: gradients of 5 steps under the hook."""
    join_torch_s_group(client, store)
    net = nn.parallel.DistributedDataParallel(model(dtype=getattr(torch, dtype)), bucket_cap_mb=0.004)
    net.register_comm_hook(gt.DdpState(client), gt.ddp_hook)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    seen = []
    for step in range(5):
        optimizer.zero_grad()
        loss_of(net, step, client.rank).backward()
        seen.append(np.concatenate([p.grad.float().numpy().ravel() for p in net.parameters()]))
        optimizer.step()
    return seen


@pytest.mark.parametrize("driver", ["shm", "tcp"])
def test_the_ddp_hook_gives_one_process_s_gradients(driver: str, tmp_path: Any) -> None:
    results = gradwire.launch(ddp_worker, str(tmp_path / driver), "float32", servers=2, workers=2, transport=driver)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(5):
        optimizer.zero_grad()
        sum(loss_of(net, step, rank) / WORKERS for rank in range(WORKERS)).backward()
        expected = np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
        assert np.array_equal(results[0][step], results[1][step])
        # f32 rounding: sums of two in another order of additions.
        assert np.allclose(results[0][step], expected, rtol=1e-5, atol=1e-7), step
        optimizer.step()


def test_a_hook_that_fails_raises_in_backward(tmp_path: Any) -> None:
    with pytest.raises(gradwire.LaunchError) as failed:
        gradwire.launch(ddp_left_alone, str(tmp_path / "store"), workers=2, deadlines__operation_ms=500, deadlines__busy_ms=500)
    assert "not contributed" in str(failed.value) or "RuntimeError" in str(failed.value)


def ddp_left_alone(client: Client, store: str) -> None:
    """For `Cluster.run`: only rank 0 computes."""
    join_torch_s_group(client, store)
    net = nn.parallel.DistributedDataParallel(model())
    net.register_comm_hook(gt.DdpState(client), gt.ddp_hook)
    if client.rank == 0:
        loss_of(net, 0, 0).backward()
        return
    client.barrier("never")


class FakeCuda:
    """A tensor's device, and a count of what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synchronized = 0
        monkeypatch.setattr(_exchange, "staging", lambda like: torch.full((like.numel(),), float("nan"), dtype=like.dtype))
        monkeypatch.setattr(_exchange, "wait_for_device", self.synchronize)

    def synchronize(self, tensor: torch.Tensor) -> None:
        self.synchronized += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Takes this processor for a device: what is copied where, and that each copy is waited for. No GPU runs it."""
    yield FakeCuda(monkeypatch)


def test_staging_copies_there_and_back(cuda: FakeCuda) -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        net = model()
        optimizer = gt.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), client=client)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(net, step, 0).backward()
            expected = [p.grad.clone() for p in net.parameters()]
            optimizer.step()
            assert all(torch.equal(p.grad, e) for p, e in zip(net.parameters(), expected))
        assert cuda.synchronized == 3 * 2 * len(expected)
