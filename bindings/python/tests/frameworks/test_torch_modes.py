"""torch: training without waiting for each other, and what is refused or made good where a script goes another way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
import gradwire.torch as gt
from conftest import PATIENCE_S
from gradwire.client import Client
from test_torch import assert_same, batch, copied, loss_of, model, on_each

STEPS = 30


def test_asynchronous_workers_do_not_wait_for_each_other_and_both_learn() -> None:
    ended, begun = threading.Event(), threading.Barrier(2)

    def work(client: Client) -> tuple[float, float]:
        assert client.mode == "async"
        net = model(seed=client.rank)
        optimizer = gt.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.05), net.named_parameters(), client=client)
        gt.broadcast_parameters(net.state_dict(), client=client)
        first = loss_of(net, 0, client.rank).item()
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(net, 0, client.rank).backward()
            optimizer.synchronize()
            optimizer.step()
            if step == 0:
                begun.wait(PATIENCE_S)
                # The second comes to its next step when the first has made all of its own.
                assert client.rank == 0 or ended.wait(PATIENCE_S), "the fast one waits for the late one"
        if client.rank == 0:
            ended.set()
        client.barrier()
        for parameter in net.parameters():
            parameter.grad = None
        return first, loss_of(net, 0, client.rank).item()

    for first, last in on_each(work, cluster__mode="async"):
        assert last < 0.8 * first


def test_steps_add_up_on_servers() -> None:
    def work(client: Client) -> list[float]:
        weight = nn.Parameter(torch.tensor([10.0, 20.0]))
        named = [("w", weight)]
        optimizer = gt.DistributedOptimizer(torch.optim.SGD([weight], 1.0), named, client=client, mode="async")
        for _ in range(3):
            weight.grad = torch.tensor([1.0, 2.0]) * (client.rank + 1)
            optimizer.step()
        client.barrier()
        weight.grad = torch.zeros(2)
        optimizer.step()
        return weight.tolist()

    assert on_each(work) == [[1.0, 2.0]] * 2


def test_a_mode_that_no_optimizer_has_is_refused() -> None:
    with gradwire.launch(cluster__mode="bounded:3") as cluster, cluster.connect() as client:
        inner = torch.optim.SGD(model().parameters(), 0.1)
        with pytest.raises(gradwire.InputError, match="bounded:3; pass mode='sync'"):
            gt.DistributedOptimizer(inner, client=client)
        assert gt.DistributedOptimizer(inner, client=client, mode="sync").mode == "sync"


def test_asynchronous_workers_share_parameters_that_were_unfrozen_or_added() -> None:
    def work(client: Client) -> list[list[float]]:
        weights = [nn.Parameter(torch.full((2,), 10.0)) for _ in range(3)]
        weights[1].requires_grad_(False)
        inner = torch.optim.SGD(weights[:2], 1.0)
        optimizer = gt.DistributedOptimizer(inner, list(zip("ab", weights)), client=client, mode="async")
        weights[1].requires_grad_(True)
        optimizer.add_param_group({"params": weights[2:]})
        for last in (False, True):
            for at, weight in enumerate(weights):
                weight.grad = torch.full((2,), 0.0 if last else float(at + client.rank))
            optimizer.step()
            client.barrier()
        return [weight.tolist() for weight in weights]

    assert on_each(work) == [[[9.0] * 2, [7.0] * 2, [5.0] * 2]] * 2


class Fails(torch.autograd.Function):
    """Once its gradient is there."""

    @staticmethod
    def forward(ctx: Any, data: torch.Tensor) -> torch.Tensor:
        return data.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ArithmeticError("a backward fails")


def test_training_goes_on_after_a_backward_that_failed() -> None:
    def fail(net: nn.Module) -> None:
        # The last layer's gradients are on their way by then.
        hook = net.get_submodule("module.2").register_forward_hook(lambda _, __, output: Fails.apply(output))
        with pytest.raises(ArithmeticError):
            nn.functional.cross_entropy(net(batch(0, 0)[0]), batch(0, 0)[1]).backward()
        hook.remove()

    def work(client: Client) -> nn.Module:
        net = gt.DistributedDataParallel(model(), client=client)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(4):
            if step == 2:
                fail(net)
            optimizer.zero_grad()
            loss_of(net, step, client.rank).backward()
            optimizer.step()
        return net.module

    expected = model()
    plain = torch.optim.SGD(expected.parameters(), 0.1)
    for step in range(4):
        plain.zero_grad()
        sum(loss_of(expected, step, rank) / 2 for rank in range(2)).backward()
        plain.step()
    for net in on_each(work):
        assert_same(net, expected)


def test_of_several_models_one_worker_s_backward_may_fail() -> None:
    def work(client: Client) -> list[Any]:
        nets = [gt.DistributedDataParallel(nn.Linear(2, 1, bias=False), client=client, prefix=f"{at}.") for at in range(2)]
        seen: list[Any] = []
        for step in range(3):
            for net in nets:
                net.zero_grad(set_to_none=True)
                fails = (step, client.rank) == (1, 1) and net is nets[0]
                # The weight's gradient is on its way when that of the input fails.
                data = Fails.apply(torch.ones(1, 2, requires_grad=True)) if fails else torch.ones(1, 2)
                try:
                    net(data).sum().backward()
                except ArithmeticError:
                    net(torch.ones(1, 2))
                seen.append(None if fails else net.module.weight.grad.tolist())
        return seen

    first, second = on_each(work)
    # In the round that failed, the gradient was on its way.
    assert first == [[[1.0, 1.0]]] * 6
    assert second == [*[[[1.0, 1.0]]] * 2, None, *[[[1.0, 1.0]]] * 3]


def test_what_a_wrapped_optimizer_has_the_wrapper_has() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        net = model()
        inner = torch.optim.SGD(net.parameters(), 0.1)
        inner.words = "mine"  # type: ignore[attr-defined]
        optimizer = gt.DistributedOptimizer(inner, net.named_parameters(), client=client)
        assert optimizer.words == "mine"
        with pytest.raises(AttributeError, match="nothing"):
            optimizer.nothing  # noqa: B018
        stepped: list[object] = []
        if hasattr(inner, "register_step_post_hook"):
            optimizer.register_step_pre_hook(lambda one, *_: stepped.append(one))
            hook = optimizer.register_step_post_hook(lambda one, *_: stepped.append(one))
            loss_of(net, 0, 0).backward()
            optimizer.step()
            hook.remove()
            assert stepped == [inner, inner]


CHILDREN = """
import multiprocessing, sys
import byteps.torch as bps
import gradwire.torch, torch
from byteps.torch.compression import Compression
from byteps.torch.ops import push_pull_async_inplace
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, at):
        return torch.tensor(float(at))

if __name__ == "__main__":
    assert Compression is bps.Compression and push_pull_async_inplace is gradwire.torch.push_pull_async_inplace
    for way in ("spawn", "forkserver"):
        loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=multiprocessing.get_context(way))
        assert sum(one.item() for one in loader) == 6
    print("read", sys.argv[1])
"""


def test_processes_that_a_script_starts_find_byteps(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "gradwire.run", str(script), "all"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        # Several processes import torch.
        timeout=3 * PATIENCE_S,
    )
    assert done.returncode == 0 and done.stdout == "read all\n", done.stdout + done.stderr


@pytest.mark.parametrize("name", ["gradients", "meta", "sparse", "conjugated"])
def test_tensors_that_cannot_be_read_where_they_lie_are_refused(name: str) -> None:
    tensors = {
        "gradients": lambda: torch.ones(4, requires_grad=True),
        "meta": lambda: torch.ones(4, device="meta"),
        "sparse": lambda: torch.ones(4).to_sparse(),
        "conjugated": lambda: torch.ones(4, dtype=torch.complex64).conj(),
    }
    with gradwire.launch() as cluster, cluster.connect() as client:
        declared = client.declare("w", 4, optimizer=gradwire.Assign())
        with pytest.raises(gradwire.InputError):
            client.push(declared, tensors[name]())
        assert client.push_pull(declared, torch.ones(4)).wait().tolist() == [1.0] * 4


def test_parameters_that_are_sharded_are_refused_with_the_reason(tmp_path: Path) -> None:
    flat = nn.Linear(4, 4)
    flat.weight._fsdp_flattened = True  # type: ignore[attr-defined]
    nets = [flat]
    # Since torch 2.6. Debian's cannot import the module with its own Python.
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6):
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        nets.append(fully_shard(nn.Linear(4, 4), mesh=dist.device_mesh.init_device_mesh("cpu", (1,))))
    try:
        with gradwire.launch() as cluster, cluster.connect() as client:
            for net in nets:
                inner = torch.optim.SGD(net.parameters(), 0.1)
                for call in (
                    lambda: gt.DistributedOptimizer(inner, net.named_parameters(), client=client),
                    lambda: gt.DistributedOptimizer(inner, client=client, mode="async"),
                    lambda: gt.DistributedDataParallel(net, client=client),
                    lambda: gt.broadcast_parameters(net.named_parameters(), client=client),
                ):
                    with pytest.raises(gradwire.InputError, match="is sharded over processes .FSDP") as refused:
                        call()
                    assert refused.value.code == "sharded"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def compiled_worker(client: Client) -> list[nn.Module]:
    """For `launch`: compiled before and after wrapping."""
    nets = [model() for _ in range(3)]
    calls = [
        torch.compile(nets[0], backend="aot_eager"),
        gt.DistributedDataParallel(torch.compile(nets[1], backend="aot_eager"), client=client),
        torch.compile(gt.DistributedDataParallel(nets[2], client=client), backend="aot_eager"),
    ]
    optimizers: list[Any] = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
    optimizers[0] = gt.DistributedOptimizer(optimizers[0], calls[0].named_parameters(), client=client)
    for step in range(3):
        for call, optimizer in zip(calls, optimizers):
            optimizer.zero_grad()
            loss_of(call, step, client.rank).backward()
            optimizer.step()
    return [copied(net) for net in nets]


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2 has it first")
def test_compiled_models_learn_what_one_process_learns() -> None:
    expected = model()
    plain = torch.optim.SGD(expected.parameters(), 0.1)
    for step in range(3):
        plain.zero_grad()
        sum(loss_of(expected, step, rank) / 2 for rank in range(2)).backward()
        plain.step()
    for nets in gradwire.launch(compiled_worker, servers=1, workers=2):
        for net in nets:
            assert_same(net, expected)


def test_a_closure_whose_round_fails_ends_its_step() -> None:
    def work(client: Client) -> bool:
        net = model()
        optimizer = gt.DistributedOptimizer(torch.optim.LBFGS(net.parameters(), max_iter=2), net.named_parameters(), client=client)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, 0, client.rank)
            loss.backward()
            if client.rank == 1:
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            return loss

        with pytest.raises(gradwire.InputError, match="rank 1: gradients were modified"):
            optimizer.step(closure)
        assert optimizer._averager is not None
        return optimizer._averager.is_within_step

    assert on_each(work) == [False, False]
