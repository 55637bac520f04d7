"""Parameters at servers: workers that fail are restarted, and the training continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PATIENCE_S
from gradwire.launching import PROGRAMS_VARIABLE, _clean_environ, program

# Rank 1 fails before a step, rank 0 after its gradients, then a server.
SCRIPT = """
import hashlib, os, signal, sys
from pathlib import Path

import gradwire.tensorflow as gw
import keras
import numpy as np
import tensorflow as tf

directory, mode = Path(sys.argv[1]), sys.argv[2]


def once(what):
    path = directory / what
    is_first = not path.exists() and directory.name != "undisturbed"
    if is_first:
        path.touch()
    return is_first


def kill_a_server():
    children = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    servers = [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "gradwire-server"]
    os.kill(servers[-1], signal.SIGKILL)


gw.init()
rank = gw.rank()
keras.utils.set_random_seed(rank)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
optimizer = gw.ParameterServerOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), mode=mode)
# One never has a gradient.
optimizer.build([*model.trainable_variables, keras.Variable(np.zeros(3, "float32"))])
truth = np.random.default_rng(7).normal(size=(6, 3)).astype("float32")


@tf.function
def step_of(inputs, outputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs) - outputs) ** 2)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


begin = 0 if (directory / "careless").exists() else gw.resume(optimizer)
for step in range(begin, 12):
    if (rank, step) == (1, 3) and once("before"):
        os.kill(os.getpid(), signal.SIGKILL)
    if (rank, step) == (0, 10) and once("server"):
        kill_a_server()
    optimizer.learning_rate = 0.05 if step < 6 else 0.02
    inputs = np.random.default_rng(100 * step + rank).normal(size=(16, 6)).astype("float32")
    loss = step_of(inputs, inputs @ truth)
    if (rank, step) == (0, 7) and once("after"):
        os.kill(os.getpid(), signal.SIGKILL)
bits = hashlib.sha256(b"".join(one.tobytes() for one in model.get_weights())).hexdigest()
print("rank", rank, "from", begin, "steps", int(optimizer.iterations), float(loss), bits, flush=True)
"""


def run(tmp_path: Path, name: str, mode: str) -> subprocess.CompletedProcess[str]:
    script, marks = tmp_path / "script.py", tmp_path / name
    script.write_text(SCRIPT)
    marks.mkdir(exist_ok=True)
    command = [program("gradwire"), "launch", "-n", "2", "-s", "2", "--restart"]
    settings = ["--set", "cluster.worker_loss=wait", "--set", "cluster.replicas=1"]
    environ = {**_clean_environ(), PROGRAMS_VARIABLE: os.path.dirname(program("gradwire-scheduler"))}
    return subprocess.run(
        [*command, *settings, "--", sys.executable, str(script), str(marks), mode],
        env={**environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )


def lines_of(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert done.returncode == 0, done.stderr[-6000:]
    lines = (done.stdout + done.stderr).splitlines()
    return sorted(line[line.index("rank ") :].split() for line in lines if " from " in line and " steps " in line)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_that_are_restarted_continue_with_the_servers_weights(tmp_path: Path, mode: str) -> None:
    disturbed = lines_of(run(tmp_path, "disturbed", mode))
    assert sorted(one.name for one in (tmp_path / "disturbed").iterdir()) == ["after", "before", "server"]
    assert [line[5] for line in disturbed] == ["12", "12"]
    assert int(disturbed[0][3]) in (7, 8) and int(disturbed[1][3]) == 3, disturbed
    if mode == "sync":
        undisturbed = lines_of(run(tmp_path, "undisturbed", mode))
        assert [line[3] for line in undisturbed] == ["0", "0"]
        assert {line[7] for line in disturbed} == {line[7] for line in undisturbed} and len({line[7] for line in disturbed}) == 1
    else:
        assert max(float(line[6]) for line in disturbed) < 3.0, disturbed


def test_a_restarted_worker_that_does_not_resume_gets_an_error(tmp_path: Path) -> None:
    (tmp_path / "disturbed").mkdir()
    (tmp_path / "disturbed" / "careless").touch()
    done = run(tmp_path, "disturbed", "sync")
    assert done.returncode != 0
    assert "3 steps are complete: call resume(optimizer) before the first step" in done.stdout + done.stderr
