"""BytePS's names: a script of its learns what one process learns, and each name does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
import gradwire.torch as bps
from conftest import PATIENCE_S
from gradwire import _place
from gradwire.client import Client
from gradwire.launching import program
from gradwire.torch import _process
from gradwire.torch._state import state_of
from test_torch import Branches, alone, assert_same, loss_of, model, on_each

SCRIPT = Path(__file__).parent / "byteps_script.py"


def run_script(way: str, where: Path) -> list[dict[str, Any]]:
    """What its two workers left, started by `gradwire launch` as a program of BytePS's."""
    command = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", sys.executable, "-m", "gradwire.run"]
    done = subprocess.run(
        [*command, str(SCRIPT), str(where), way],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "BYTEPS_LOCAL_SIZE": "1"},
        capture_output=True,
        text=True,
        # Two processes import torch first.
        timeout=3 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(where / f"{rank}.pt") for rank in range(2)]


def reference(begun: list[torch.Tensor], normalizes: bool) -> nn.Module:
    """One process with both workers' data."""
    net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.BatchNorm1d(40, affine=False), nn.Linear(40, 5))
    with torch.no_grad():
        for mine, theirs in zip(net.parameters(), begun):
            mine.copy_(theirs)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    net.train(normalizes)
    for step in range(20):
        optimizer.zero_grad()
        for rank in range(2):
            random = torch.Generator().manual_seed(100 * step + rank)
            data, labels = torch.randn(8, 20, generator=random), torch.randint(0, 5, (8,), generator=random)
            (nn.functional.cross_entropy(net(data), labels) / 2).backward()
        optimizer.step()
    return net


def test_operations_without_a_name_take_turns_with_few_names() -> None:
    def work(client: Client) -> list[str]:
        for turn in range(100):
            sent = torch.full((3,), float(turn + client.rank))
            got = bps.push_pull_async(sent, average=False, client=client)
            assert bps.synchronize(got).tolist() == [2.0 * turn + 1] * 3
        # More in flight than there are names, and workers wait for them in different orders.
        begun = [bps.push_pull_async_inplace(torch.full((7,), float(at)), client=client) for at in range(100)]
        for at in range(100) if client.rank == 0 else range(99, -1, -1):
            assert bps.synchronize(begun[at]).tolist() == [float(at)] * 7
        large = [bps.push_pull_async(torch.full((3 << 20,), float(at)), client=client) for at in range(5)]
        assert [int(bps.synchronize(operation)[-1]) for operation in large] == list(range(5))
        return sorted(name for name, _ in state_of(client).names.exchanges)

    names = on_each(work)
    assert names[0] == names[1]
    kinds = [name.rsplit(".", 1)[0] for name in names[0]]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "unnamed.3.float32": 64,
        "unnamed.7.float32": 64,
        f"unnamed.{3 << 20}.float32": 2,
    }


@pytest.mark.parametrize("way", ["optimizer", "model"])
def test_an_unchanged_script_learns_what_one_process_learns(way: str, tmp_path: Path) -> None:
    first, second = run_script(way, tmp_path)
    expected = list(reference(first["begun"], normalizes=way == "model").parameters())
    assert any(not torch.equal(one, other) for one, other in zip(first["begun"], first["learned"]))
    for one, other, alone_ in zip(first["learned"], second["learned"], expected):
        assert torch.equal(one, other), "workers differ"
        assert torch.allclose(one, alone_, rtol=1e-4, atol=1e-6)
    assert first["mean"] == second["mean"] == pytest.approx((first["loss"] + second["loss"]) / 2)
    assert first["total"] == second["total"] == 3.0
    assert [one["place"] for one in (first, second)] == [(0, 2, 0, 2), (1, 2, 1, 2)]


def test_a_model_s_gradients_are_averaged_when_backward_returns() -> None:
    def work(client: Client) -> nn.Module:
        net = bps.DistributedDataParallel(model(seed=client.rank), client=client)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(10):
            optimizer.zero_grad()
            with net.no_sync():
                (loss_of(net, 2 * step, client.rank) / 2).backward()
            (loss_of(net, 2 * step + 1, client.rank) / 2).backward()
            optimizer.step()
        return net.module

    expected = model()
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    for step in range(10):
        optimizer.zero_grad()
        sum(loss_of(expected, 2 * step + half, rank) / 4 for half in range(2) for rank in range(2)).backward()
        optimizer.step()
    for net in on_each(work):
        assert_same(net, expected)


def test_parts_of_a_model_that_are_not_used_count_as_zeros() -> None:
    def work(client: Client) -> list[Any]:
        net = bps.DistributedDataParallel(Branches(), client=client)
        net(torch.ones(2, 4), client.rank).backward()
        return [None if part.bias.grad is None else part.bias.grad.tolist() for part in net.module.parts]

    for gradients in on_each(work):
        assert gradients == [[1.0] * 4, [1.0] * 4, None]


@pytest.mark.parametrize("driver", ["shm", "tcp"])
def test_a_tensor_of_any_shape_that_comes_again_is_sent_from_where_it_lies(driver: str) -> None:
    shapes = [(), (5,), (2, 3), (1024, 512)]

    def work(client: Client) -> tuple[int, int]:
        tensors = [torch.zeros(shape) for shape in shapes]
        for turn in range(4):
            for at, tensor in enumerate(tensors):
                tensor.fill_(10.0 * turn + at + client.rank)
                assert bps.push_pull_inplace(tensor, name=f"{at}", client=client) is tensor
                assert (tensor == 10.0 * turn + at + 0.5).all()
        stats = client.stats()
        # Another tensor under the name is not the one that was sent before.
        for at, shape in enumerate(shapes):
            other = torch.full(shape, 100.0 * client.rank)
            assert (bps.push_pull_inplace(other, name=f"{at}", client=client) == 50).all()
        return stats["arrays_copied"], stats["arrays_in_place"]

    # The first time from the library's buffer; the second time the memory is new to the library. Servers that share memory read large
    # gradients in the library's memory, to which they are copied.
    in_place = 2 * len(shapes) if driver == "tcp" else 2 * (len(shapes) - 1)
    for copied, sent in on_each(work, transport=driver):
        assert (sent, copied) == (in_place, in_place // 2)


def test_tensors_by_name_are_summed_and_averaged() -> None:
    def work(client: Client) -> None:
        mine = torch.full((2, 3), float(client.rank + 1), requires_grad=True)
        mean = bps.push_pull(mine, name="mean", client=client)
        assert mean.tolist() == [[1.5] * 3] * 2
        (mean * 4).sum().backward()
        assert mine.grad is not None and mine.grad.tolist() == [[4.0] * 3] * 2
        whole = torch.tensor([client.rank + 1, 10], dtype=torch.int64)
        assert bps.push_pull_inplace(whole, average=False, name="whole", client=client) is whole
        assert whole.tolist() == [3, 20]
        # Several under way, of one name too, and waited for in another order.
        handles = [bps.push_pull_async(torch.full((5,), float(at)), average=False, name=name, client=client) for at, name in enumerate("aba")]
        assert [bps.synchronize(handle).tolist() for handle in reversed(handles)] == [[4.0] * 5, [2.0] * 5, [0.0] * 5]
        assert all(bps.poll(handle) for handle in handles)
        half = bps.push_pull(torch.tensor([0.1 + client.rank]), name="half", compression=bps.Compression.fp16, client=client)
        assert half.dtype == torch.float32 and half.item() == pytest.approx(0.6, abs=1e-3) and half.item() != 0.6
        unnamed = bps.push_pull_async(torch.ones(4), average=False, client=client)
        assert bps.synchronize(unnamed).tolist() == [2.0] * 4
        with pytest.raises(gradwire.InputError, match="was a tensor of"):
            bps.push_pull(torch.ones(7), name="mean", client=client)
        with pytest.raises(gradwire.InputError, match="name"):
            bps.push_pull(torch.ones(7), client=client)

    on_each(work)


def test_any_rank_broadcasts() -> None:
    def work(client: Client) -> None:
        for root in (1, 0, 1):
            tensors = {"w": torch.full((4,), 10.0 * root + client.rank)}
            bps.broadcast_parameters(tensors, root, client=client)
            assert tensors["w"].tolist() == [11.0 * root] * 4
            assert bps.broadcast_object({"from": client.rank}, root, client=client) == {"from": root}
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * (client.rank + 1))
        bps.broadcast_optimizer_state(optimizer, root_rank=1, client=client)
        assert optimizer.param_groups[0]["lr"] == 0.2
        with pytest.raises(gradwire.InputError, match="rank"):
            bps.broadcast_parameters(tensors, 2, client=client)

    on_each(work)


def scale(net: nn.Module, rank: int, optimizer: Any, scaler: Any, synchronizes: bool) -> None:
    for step in range(5):
        optimizer.zero_grad()
        ranks = [rank] if synchronizes else [0, 1]
        scaler.scale(sum(loss_of(net, step, one) for one in ranks) / len(ranks)).backward()
        if synchronizes:
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.skipif(not hasattr(getattr(torch, "amp", None), "GradScaler"), reason="torch 2.3 has it for the CPU first")
def test_scaled_gradients_are_unscaled_after_they_are_averaged() -> None:
    def work(client: Client) -> nn.Module:
        net = model()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), client=client)
        scale(net, client.rank, optimizer, torch.amp.GradScaler("cpu", init_scale=64.0), True)
        # What unscale_ changes has left already, without synchronize().
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        before = [p.detach().clone() for p in net.parameters()]
        optimizer.zero_grad()
        scaler.scale(loss_of(net, 9, client.rank)).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(gradwire.InputError, match="synchronize"):
            scaler.step(optimizer)
        assert all(torch.equal(p, old) for p, old in zip(net.parameters(), before)), "nothing was stepped"
        optimizer.zero_grad()
        return net

    expected = model()
    scale(expected, 0, torch.optim.SGD(expected.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=64.0), False)
    for net in on_each(work):
        assert_same(net, expected)


def test_gradients_that_left_are_not_changed_silently() -> None:
    def work(client: Client) -> None:
        net = model()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), client=client)
        loss_of(net, 0, client.rank).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        with pytest.raises(gradwire.InputError) as error:
            optimizer.step()
        assert error.value.code == "changed_gradient"
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(2)
        for half in range(2):
            loss_of(net, half, client.rank).backward()
        optimizer.step()

    on_each(work)


def test_halved_gradients_are_still_close() -> None:
    def work(client: Client) -> nn.Module:
        net = model()
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.1), net.named_parameters(), bps.Compression.fp16, client=client
        )
        for step in range(5):
            optimizer.zero_grad()
            loss_of(net, step, client.rank).backward()
            optimizer.step()
        return net

    expected = alone(5, lambda parameters: torch.optim.SGD(parameters, 0.1))
    for net in on_each(work):
        assert_same(net, expected, rtol=1e-2, atol=1e-3)


def test_the_process_s_client_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gradwire.InputError, match="init"):
        bps.rank()
    with pytest.raises(gradwire.InputError, match="client="):
        bps.DistributedOptimizer(torch.optim.SGD(model().parameters(), 0.1), None, gradwire.Sum())
    with gradwire.launch() as cluster:
        for name, value in cluster.environ(0).items():
            if name.startswith("GRADWIRE_"):
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("BYTEPS_LOCAL_RANK", "0")
        bps.init()
        bps.init()
        assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1) and bps.initialized()
        with pytest.raises(gradwire.InputError, match="client"):
            bps.DistributedOptimizer(torch.optim.SGD(model().parameters(), 0.1), None, "fp16")
        with pytest.raises(gradwire.InputError, match="is not a client"):
            bps.broadcast_parameters({}, client=3)
        bps.shutdown()
        bps.shutdown()
        assert not bps.initialized()


def test_places_are_those_of_workers_or_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*sum(_place.PLACES, ()), *_place.OF_TASKS, *_place.TASKS, "SLURM_LOCALID"]

    def place(workers: int, **told: int) -> tuple[int, int] | None:
        for name in names:
            monkeypatch.delenv(name, raising=False)
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        return _place.place(workers)

    ours = {"BYTEPS_LOCAL_RANK": 1, "BYTEPS_LOCAL_SIZE": 2}
    mpi = {"OMPI_COMM_WORLD_SIZE": 4, "OMPI_COMM_WORLD_LOCAL_RANK": 3, "OMPI_COMM_WORLD_LOCAL_SIZE": 4}
    slurm = {"SLURM_STEP_NUM_TASKS": 4, "SLURM_LOCALID": 3}
    assert place(2, **ours, **mpi) == place(2, **ours, **slurm) == (1, 2)
    assert place(2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2) == (1, 2)
    assert place(4, **mpi) == (3, 4), "every task is a worker"
    assert place(2, **mpi) is place(2, **slurm) is place(2, PMI_SIZE=4) is None
    assert place(1, **mpi) == place(1, **slurm) == place(2) == place(2, SLURM_STEP_NUM_TASKS=1) == (0, 1)


def test_a_place_that_is_not_told_is_an_error_and_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process.process_client, "client_or_default", lambda: None)
    monkeypatch.setattr(_process.process_client, "_local", None)
    for ask in (bps.local_rank, bps.local_size):
        with pytest.raises(gradwire.SettingError, match="BYTEPS_LOCAL_RANK") as error:
            ask()
        assert (error.value.code, error.value.exit_code) == ("unknown_place", 78)
