"""Servers that apply optimizers of torch (`gradwire serve`), beside torch's own in one process."""

import os
import subprocess
import sys
from pathlib import Path

from gradwire.launching import PROGRAMS_VARIABLE, _clean_environ, program

WITHIN_S = 120.0

RULES = """
import gradwire.serve
import torch

class Halved(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(0.5)
        return super().step()

if __name__ == "__gradwire_updates__":
    gradwire.serve.register(Halved, torch.optim.SGD, torch.optim.AdamW, torch.optim.SparseAdam)
"""

# Each worker steps in its turn, so that the order of the updates is known.
VALUES = """
import sys
sys.path.insert(0, sys.argv[1])
import gradwire
import gradwire.torch as gw
import torch
from rules import Halved

gw.init()
rank, size = gw.rank(), gw.size()

def model_of(sparse=False):
    torch.manual_seed(1)
    body = [torch.nn.Embedding(6, 3, sparse=True)] if sparse else [torch.nn.Linear(5, 3)]
    return torch.nn.Sequential(*body, torch.nn.Linear(3, 2)) if not sparse else body[0]

def loss_of(model, turn, sparse=False):
    torch.manual_seed(100 + turn)
    data = torch.tensor([turn % 6, (2 * turn + 1) % 6]) if sparse else torch.randn(4, 5)
    return model(data).pow(2).sum()

OPTIMIZERS = {
    "momentum": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": lambda ps: torch.optim.AdamW(ps, 0.05, betas=(0.8, 0.9)),
    "own": lambda ps: Halved(ps, 0.05, momentum=0.5),
    "sparse": lambda ps: torch.optim.SparseAdam(list(ps), 0.05),
}
for name, make in OPTIMIZERS.items():
    sparse = name == "sparse"
    model, local = model_of(sparse), model_of(sparse)
    if rank:
        with torch.no_grad():
            [one.zero_() for one in model.parameters()]
    optimizer = gw.ServedOptimizer(make(model.parameters()), model.named_parameters(), prefix=name)
    here = [make([one]) for one in local.parameters()]
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for turn in range(8):
        if turn % size == rank:
            loss_of(model, turn, sparse).backward()
        optimizer.step()
        optimizer.zero_grad()
        # Rank 0's rates reach the servers before the next turn.
        gw.barrier()
        rates.step()
        loss_of(local, turn, sparse).backward()
        for one in here:
            one.step()
            one.zero_grad()
            one.param_groups[0]["lr"] = 0.05 * 0.5 ** ((turn + 1) // 2)
        optimizer.step()
        gw.barrier()
        for mine, its in zip(model.parameters(), local.parameters()):
            assert torch.equal(mine, its), (name, turn, mine, its)

try:
    gw.ServedOptimizer(torch.optim.RMSprop(model.parameters()), prefix="unknown")
except gradwire.OperationError as error:
    assert "no torch optimizer RMSprop" in str(error), error
else:
    raise AssertionError("an optimizer that is not registered")
print("well")
"""


# Steps from the first to the second word, with a rate that changes in each.
CONTINUED = """
import sys
import gradwire.torch as gw
import torch

begin, end = map(int, sys.argv[2:])
gw.init()

def model_of():
    torch.manual_seed(1)
    return torch.nn.Linear(4, 3)

def train(model, optimizers, begin, end):
    for step in range(begin, end):
        torch.manual_seed(step)
        model(torch.randn(5, 4)).pow(2).sum().backward()
        for one in optimizers:
            for group in one.param_groups:
                group["lr"] = 0.05 * 0.9**step
            one.step()
            one.zero_grad()

model, local = model_of(), model_of()
optimizer = gw.ServedOptimizer(torch.optim.AdamW([{"params": model.parameters(), "name": "all"}], 0.05))
second = model_of()
other = gw.ServedOptimizer(torch.optim.SGD(second.parameters(), 0.1, momentum=0.9))
torch.optim.lr_scheduler.OneCycleLR(other, 0.2, total_steps=10)
train(second, [other], 0, 1)
assert optimizer._step_supports_amp_scaling is False
train(model, [optimizer], begin, end)
train(local, [torch.optim.AdamW([one], 0.05) for one in local.parameters()], 0, end)
assert all(map(torch.equal, model.parameters(), local.parameters())), (list(model.parameters()), list(local.parameters()))
print("well")
"""


def launch(directory, script, *words, workers=2):
    (directory / "rules.py").write_text(RULES)
    (directory / "script.py").write_text(script)
    command = [program("gradwire"), "launch", "-n", workers, "-s", "2", "--every-role", "--grace-ms", "500", "--set", "deadlines.operation_ms=20000"]
    options = ["--updates", directory / "rules.py", "--state", directory / "state"]
    command += ["--", sys.executable, "-m", "gradwire.run", *options, directory / "script.py", directory, *words]
    environ = {**_clean_environ(), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environ[PROGRAMS_VARIABLE] = str(Path(program("gradwire")).parent)
    done = subprocess.run([*map(str, command)], env=environ, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and said.count("well") == workers, said[-6000:]


def test_values_are_those_of_torchs_optimizers(tmp_path):
    launch(tmp_path, VALUES)


def test_a_job_continues_from_a_state(tmp_path):
    launch(tmp_path, CONTINUED, 0, 5, workers=1)
    launch(tmp_path, CONTINUED, 5, 9, workers=1)
