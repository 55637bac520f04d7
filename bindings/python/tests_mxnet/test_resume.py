"""Workers and servers that fail are replaced, and the weights are those of an undisturbed training."""

import os
import subprocess
import sys
from pathlib import Path

import conftest
import mxnet as mx
import pytest

from gradwire.launching import PROGRAMS_VARIABLE, _clean_environ, program

BEGINNING = """
import hashlib, os, signal, sys
from pathlib import Path

import gradwire.mxnet
import mxnet as mx
import numpy as np

directory = Path(sys.argv[1])


def once(what):
    path = directory / what
    is_first = directory != Path("undisturbed") and not path.exists()
    if is_first:
        path.touch()
    return is_first


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_a_server():
    children = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    os.kill([pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "gradwire-server"][-1], signal.SIGKILL)


def tell(begin, arrays):
    mx.nd.waitall()
    bits = hashlib.sha256(b"".join(array.asnumpy().tobytes() for array in arrays)).hexdigest()
    print("rank", rank, "from", begin, "bits", bits, flush=True)
"""

# Rank 1 fails within the first step and before another one; rank 0 within the step in which the rate falls; then a server.
GLUON = BEGINNING + """
from mxnet import autograd, gluon

net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, in_units=6), gluon.nn.BatchNorm(in_channels=8), gluon.nn.Dense(3, in_units=8))
net.initialize(mx.init.Xavier())
rates = mx.lr_scheduler.FactorScheduler(4, 0.5)
options = {"learning_rate": 0.1, "momentum": 0.9, "lr_scheduler": rates}
trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore="dist_gradwire")
begin = gradwire.mxnet.resume(trainer, 16)
store = trainer._kvstore
rank = store.rank


def fail_within():
    # Two of the keys, and their rounds, reach the servers.
    push_pull, calls = store.pushpull, []

    def fail_later(*words, **named):
        if len(calls) == 2:
            mx.nd.waitall()
            die()
        calls.append(push_pull(*words, **named))

    store.pushpull = fail_later


for step in range(begin, 12):
    if (rank, step) == (1, 3) and once("before"):
        # The engine has ended the step before.
        mx.nd.waitall()
        die()
    inputs = mx.nd.array(np.random.RandomState(100 * step + rank).randn(16, 6))
    with autograd.record():
        loss = net(inputs).square().mean()
    loss.backward()
    if (rank, step) == (1, 0) and once("first") or (rank, step) == (0, 8) and once("within"):
        fail_within()
    if (rank, step) == (0, 10) and once("server"):
        kill_a_server()
    trainer.step(16)
tell(begin, [one.data() for one in net.collect_params().values() if one.grad_req != "null"])
"""

# A script with a store of its own.
STORE = BEGINNING + """
kv = mx.kv.create("dist_gradwire")
rank = kv.rank
kv.init([3, 9], [mx.nd.ones((4, 3)), mx.nd.ones((5,))])
kv.set_optimizer(mx.optimizer.create("adam", learning_rate=0.1, lr_scheduler=mx.lr_scheduler.FactorScheduler(5, 0.5, base_lr=0.1)))
begin = gradwire.mxnet.resume(kv)
outs = [mx.nd.zeros((4, 3)), mx.nd.zeros((5,))]
for step in range(begin, 8):
    gradients = [mx.nd.array(np.random.RandomState(10 * step + rank).randn(*out.shape)) for out in outs]
    kv.push(3, gradients[0])
    if (rank, step) in ((1, 2), (0, 5)) and once(f"{rank}"):
        kv._keys[3].settle()
        die()
    kv.push(9, gradients[1])
    kv.pull([3, 9], out=outs)
    mx.nd.waitall()
tell(begin, outs)
"""

FORGETS = BEGINNING + """
kv = mx.kv.create("dist_gradwire")
rank = kv.rank
kv.init(0, mx.nd.ones((4,)))
for step in range(4):
    if (rank, step) == (1, 2) and once("dies"):
        die()
    kv.push(0, mx.nd.ones((4,)))
    kv.pull(0, out=mx.nd.zeros((4,)))
    mx.nd.waitall()
"""


def launch(tmp_path, text, directory):
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [program("gradwire"), "launch", "-n", "2", "-s", "2", "--restart", "--grace-ms", "1000"]
    settings = ["--set", "cluster.worker_loss=wait", "--set", "cluster.replicas=1"]
    path = os.pathsep.join(path for path in sys.path if path)
    environ = {**_clean_environ(), PROGRAMS_VARIABLE: os.path.dirname(program("gradwire-scheduler")), "PYTHONPATH": path}
    command = [*command, *settings, "--", sys.executable, str(script), str(directory)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=conftest.WITHIN_S)


def told(tmp_path, text, directory):
    """What each rank printed."""
    done = launch(tmp_path, text, directory)
    assert done.returncode == 0, done.stderr[-6000:]
    lines = (done.stdout + done.stderr).splitlines()
    return sorted(line[line.index("rank ") :].split() for line in lines if " from " in line and " bits " in line)


def is_as_undisturbed(tmp_path, text, marks, begins):
    (tmp_path / "marks").mkdir()
    undisturbed, disturbed = told(tmp_path, text, "undisturbed"), told(tmp_path, text, tmp_path / "marks")
    assert sorted(one.name for one in (tmp_path / "marks").iterdir()) == sorted(marks)
    assert [line[3] for line in undisturbed] == ["0", "0"] and [line[3] for line in disturbed] == begins, disturbed
    assert len({tuple(line[4:]) for line in undisturbed + disturbed}) == 1, (undisturbed, disturbed)


@pytest.mark.skipif(mx.__version__.startswith("2"), reason="version 2's gluon takes arrays of another kind")
def test_a_trainer_of_gluon_continues_after_workers_and_a_server_have_failed(tmp_path):
    is_as_undisturbed(tmp_path, GLUON, ["before", "first", "within", "server"], ["8", "3"])


@pytest.mark.skipif(not mx.__version__.startswith("2"), reason="the same code as in version 2, where the slow tier runs it")
def test_a_script_with_a_store_continues_after_workers_have_failed(tmp_path):
    is_as_undisturbed(tmp_path, STORE, ["0", "1"], ["5", "2"])


def test_a_script_that_does_not_resume_gets_an_error_and_repeats_no_step(tmp_path):
    (tmp_path / "marks").mkdir()
    done = launch(tmp_path, FORGETS, tmp_path / "marks")
    assert done.returncode != 0 and "call gradwire.mxnet.resume before the first step" in done.stderr, done.stderr[-6000:]
