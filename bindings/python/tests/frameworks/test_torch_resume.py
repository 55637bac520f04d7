"""torch: workers that fail are restarted, get the state of the others, and the weights are those of an undisturbed training."""

from __future__ import annotations

import copy
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradwire
import gradwire.torch as gt
from conftest import PATIENCE_S, together
from gradwire.client import Client
from gradwire.launching import PROGRAMS_VARIABLE, _clean_environ, program
from test_torch import assert_same, loss_of, model, on_each

BEGINNING = """
import hashlib, os, signal, sys, threading, time
from pathlib import Path

import gradwire.torch as gw
import torch

directory = Path(sys.argv[1])


def once(what):
    path = directory / what
    is_first = not path.exists()
    if is_first:
        path.touch()
    return is_first


def wait_for(what):
    ends = time.monotonic() + 60
    while not (directory / what).exists() and time.monotonic() < ends:
        # Sleep: another process creates the file, and nobody reports that.
        time.sleep(0.02)


def fail_within():
    wait_for("late")
    os.kill(os.getpid(), signal.SIGKILL)


def kill_a_server():
    children = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    servers = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "gradwire-server"]
    os.kill(servers[-1], signal.SIGKILL)


gw.init()
rank = gw.rank()
torch.manual_seed(rank)
"""

# A worker and a server fail late in the training.
ENDING = """
    if (rank, step) == (0, 8) and once("after"):
        os.kill(os.getpid(), signal.SIGKILL)
    if (rank, step) == (0, 10) and once("server"):
        kill_a_server()
    optimizer.step()
    rates.step()
bits = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.state_dict().values())).hexdigest()
print("rank", rank, "from", begin, "rate", rates.get_last_lr()[0], bits, flush=True)
"""

# Rank 1 fails before a backward, and in a step to which it has contributed everything; rank 0 after a backward; then a server.
SCRIPT = BEGINNING + """
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model.named_parameters())
rates = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
roll = optimizer._averager._roll
if rank == 1 and (directory / "within").exists():
    begin_round = roll.begin

    def begin_and_report(*words):
        begin_round(*words)
        once("again")

    roll.begin = begin_and_report
begin = gw.resume(optimizer, model, rates)
for step in range(begin, 12):
    if (rank, step) == (1, 3) and once("before"):
        os.kill(os.getpid(), signal.SIGKILL)
    if (rank, step) == (1, 5) and once("within"):
        threading.Thread(target=fail_within).start()
    optimizer.zero_grad()
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(100 * step + rank))
    model(inputs).pow(2).mean().backward()
    if (rank, step) == (0, 5) and not (directory / "late").exists():
        # A worker is in the roll after its gradients: rank 1 has contributed all of this step.
        while optimizer.client._missing(roll.declared, 0.1) != [0]:
            pass
        once("late")
        # The process that replaces rank 1 is in this round, too, which ends with what the one before it had contributed.
        wait_for("again")""" + ENDING

# Rank 1 fails before a forward, and in a backward; rank 0 when its buffers have gone to all and before its step; then a server.
MODEL_SCRIPT = BEGINNING + """
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
model = gw.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
rates = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
begin = gw.resume(model, optimizer, rates)
for step in range(begin, 12):
    if (rank, step) == (1, 3) and once("before"):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(100 * step + rank))
    outputs = model(inputs)
    if (rank, step) == (1, 5) and once("within"):
        # The last layer's gradients are on their way by then.
        net[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    outputs.pow(2).mean().backward()""" + ENDING


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def run(script: Path, directory: str) -> list[list[str]]:
    command = [program("gradwire"), "launch", "-n", "2", "-s", "2", "--restart"]
    settings = ["--set", "cluster.worker_loss=wait", "--set", "cluster.replicas=1"]
    environ = {**_clean_environ(), PROGRAMS_VARIABLE: os.path.dirname(program("gradwire-scheduler"))}
    done = subprocess.run(
        [*command, *settings, "--", sys.executable, str(script), directory],
        env={**environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    # The launcher passes on what rank 0 prints, and marks what others print.
    lines = (done.stdout + done.stderr).splitlines()
    return sorted(line[line.index("rank ") :].split() for line in lines if " from " in line and " rate " in line)


def undisturbed(initial: nn.Module, wrap: Callable[[nn.Module, Client], tuple[Any, ...]]) -> set[str]:
    """The bits of a training of both workers without a failure."""

    def work(client: Client) -> str:
        net = copy.deepcopy(initial)
        forward, optimizer, *state = wrap(net, client)
        rates = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        for step in range(gt.resume(*state, rates), 12):
            optimizer.zero_grad()
            inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(100 * step + client.rank))
            forward(inputs).pow(2).mean().backward()
            optimizer.step()
            rates.step()
        return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in net.state_dict().values())).hexdigest()

    return set(on_each(work))


def check(tmp_path: Path, text: str, marks: list[str], begins: list[str], expected: set[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    (tmp_path / "marks").mkdir()
    disturbed = run(script, str(tmp_path / "marks"))
    assert sorted(one.name for one in (tmp_path / "marks").iterdir()) == marks
    assert [line[3] for line in disturbed] == begins and {line[5] for line in disturbed} == {"0.0125"}, disturbed
    assert {line[6] for line in disturbed} == expected and len(expected) == 1, disturbed


def test_workers_that_are_restarted_train_as_if_they_had_not_failed(tmp_path: Path) -> None:
    def wrap(net: nn.Module, client: Client) -> tuple[Any, ...]:
        optimizer = gt.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), client=client)
        return net, optimizer, optimizer, net

    torch.manual_seed(0)
    expected = undisturbed(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), wrap)
    check(tmp_path, SCRIPT, ["after", "again", "before", "late", "server", "within"], ["8", "6"], expected)


def test_wrapped_models_continue_with_their_buffers(tmp_path: Path) -> None:
    def wrap(net: nn.Module, client: Client) -> tuple[Any, ...]:
        wrapped = gt.DistributedDataParallel(net, client=client)
        optimizer = sgd(wrapped.parameters())
        return wrapped, optimizer, wrapped, optimizer

    torch.manual_seed(0)
    expected = undisturbed(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)), wrap)
    check(tmp_path, MODEL_SCRIPT, ["after", "before", "server", "within"], ["9", "5"], expected)


def test_buffers_are_those_of_rank_0_after_each_backward() -> None:
    def work(client: Client) -> tuple[torch.Tensor, torch.Tensor]:
        wrapped = gt.DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), client=client)
        assert gt.resume(wrapped, sgd(wrapped.parameters())) == 0
        mean = wrapped.module[1].running_mean
        outputs = wrapped(torch.full((4, 6), float(client.rank)) + torch.arange(4.0)[:, None])
        mine = mean.clone()
        outputs.sum().backward()
        return mine, mean.clone()

    (first, after), (other, also) = on_each(work)
    assert not torch.equal(first, other)
    assert torch.equal(after, first) and torch.equal(also, first)


def test_a_worker_is_in_the_roll_of_a_round_after_its_gradients() -> None:
    # If it were in the roll and failed before its last gradient, the others would take zeros for that gradient.
    def work(client: Client) -> nn.Module:
        net = model()
        optimizer = gt.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), client=client)
        assert gt.resume(optimizer, net) == 0
        assert optimizer._averager is not None
        roll, *gradients = optimizer._averager.tensors()
        if client.rank == 1:
            for one in gradients:
                while client._missing(one, 0.1) != [1]:
                    pass
            assert client._missing(roll, 1.0) == [0, 1]
        loss_of(net, 0, client.rank).backward()
        optimizer.step()
        return net

    one, other = on_each(work)
    assert_same(one, other)


def test_means_are_over_the_workers_that_have_not_left() -> None:
    def work(client: Client) -> nn.Module:
        net = model()
        optimizer = gt.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), client=client)
        for step in range(2 if client.rank == 2 else 5):
            optimizer.zero_grad()
            loss_of(net, step, client.rank).backward()
            optimizer.step()
        return net

    with gradwire.launch(servers=2, workers=3) as cluster:

        def of(rank: int) -> nn.Module:
            with cluster.connect(node__rank=rank) as client:
                return work(client)

        ended = together([lambda rank=rank: of(rank) for rank in range(3)])
    net = model()
    optimizer = sgd(net.parameters())
    for step in range(5):
        ranks = range(3 if step < 2 else 2)
        optimizer.zero_grad()
        sum(loss_of(net, step, rank) / len(ranks) for rank in ranks).backward()
        optimizer.step()
    for one in ended[:2]:
        assert_same(one, net)


def test_it_needs_an_optimizer_that_averages(one: Client) -> None:
    with pytest.raises(gradwire.InputError, match="resume needs a DistributedOptimizer in mode sync"):
        gt.resume(torch.optim.SGD(model().parameters(), 0.1))  # type: ignore[arg-type]
    net = model()
    optimizer = gt.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), client=one, mode="async")
    with pytest.raises(gradwire.InputError, match="in mode sync"):
        gt.resume(optimizer, net)


def test_a_wrapped_model_beside_another_wrapper_is_refused(one: Client) -> None:
    net = model()
    wrapped = gt.DistributedDataParallel(model(), client=one)
    optimizer = gt.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), client=one)
    with pytest.raises(gradwire.InputError, match="as its first argument"):
        gt.resume(sgd(wrapped.parameters()), wrapped)  # type: ignore[arg-type]
    for words in [(wrapped, sgd(wrapped.parameters())), (optimizer, wrapped), (optimizer, net)]:
        with pytest.raises(gradwire.InputError, match="supports no other wrapper beside it"):
            gt.resume(*words)  # type: ignore[arg-type]


def test_what_a_wrapped_model_cannot_resume_with_is_named(one: Client) -> None:
    wrapped = gt.DistributedDataParallel(model(), client=one)
    with pytest.raises(gradwire.InputError, match="resume does not support LBFGS"):
        gt.resume(wrapped, torch.optim.LBFGS(wrapped.parameters()))
    loss_of(wrapped, 0, 0).backward()
    with pytest.raises(gradwire.InputError, match="call resume before the first step"):
        gt.resume(wrapped, sgd(wrapped.parameters()))


def test_a_join_after_resume_keeps_the_newest_buffers() -> None:
    def work(client: Client) -> tuple[int, torch.Tensor]:
        wrapped = gt.DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), client=client)
        assert gt.resume(wrapped, sgd(wrapped.parameters())) == 0
        for step in range(2 if client.rank == 0 else 6):
            wrapped(torch.full((4, 6), float(step)) + torch.arange(4.0)[:, None]).sum().backward()
        assert gt.join(client=client) == 1
        return int(wrapped.module[1].num_batches_tracked), wrapped.module[1].running_mean.clone()

    (steps, mean), (others_steps, others_mean) = on_each(work)
    assert steps == others_steps == 6 and torch.equal(mean, others_mean)


def test_a_wrapped_model_of_a_restarted_worker_has_to_resume(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_has_rejoined", True)
    wrapped = gt.DistributedDataParallel(model(), client=one)
    with pytest.raises(gradwire.InputError, match="this worker replaces one that failed, and does not have the state of training"):
        wrapped(torch.zeros(2, 6))


def test_it_is_called_once(one: Client) -> None:
    nets = [model(), model()]
    first, second = (gt.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), client=one) for net in nets)
    assert gt.resume(first, nets[0]) == 0
    with pytest.raises(gradwire.InputError, match="resume was called before"):
        gt.resume(second, nets[1])
