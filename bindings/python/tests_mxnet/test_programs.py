"""Scripts as they are, under `gradwire.run`; what is known of a worker that is gone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import conftest
import mxnet as mx
import pytest

import gradwire

EXAMPLE = Path(__file__).parent.parent / "examples" / "mxnet_mlp.py"

UNCHANGED = """
import json, sys
import mxnet as mx
kv = mx.kv.create(sys.argv[1])
assert sys.argv == [__file__, sys.argv[1]] and kv.type == sys.argv[1], (sys.argv, kv.type)
kv.init("w", mx.nd.zeros((4,)))
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
out = mx.nd.zeros((4,))
kv.push("w", mx.nd.ones((4,)) * (kv.rank + 1))
kv._barrier()
kv.pull("w", out=out)
print(json.dumps([kv.rank, kv.num_workers, out.asnumpy().tolist()]))
"""


@pytest.mark.parametrize("name", ["dist_sync", "dist_device_sync", "p3"])
def test_an_unchanged_script_runs_over_gradwire(tmp_path, name):
    script = tmp_path / "script.py"
    script.write_text(UNCHANGED)
    said = [json.loads(out) for out in conftest.run_workers(["-m", "gradwire.run", script, name])]
    assert sorted(rank for rank, _, _ in said) == [0, 1]
    assert all(workers == 2 and values == [-1.5] * 4 for _, workers, values in said), said


def test_updates_on_workers_and_copies_by_mxnet():
    """All cases but those that look where updates run."""
    environ = {"MXNET_GRADWIRE_UPDATE": "workers", "MXNET_GRADWIRE_STAGED": "1"}
    script = conftest.HERE / "session.py"
    names = ["pushes_are_summed", "a_gradient_is_never_aliased", "operations_of_a_key_are_in_order", "shapes_and_types"]
    names += ["gluon_learns_with_encoded_gradients", "parameters_have_their_own_rates", "rows_of_sparse_weights"]
    names += [f"rows_of_{name}_are_mxnets" for name in ("momentum", "decay", "adam")]
    outs = conftest.run_workers([script, "-", *names], environ=environ)
    assert all(out.count(": well in ") == len(names) for out in outs), outs


@pytest.mark.skipif(mx.__version__.startswith("2"), reason="version 2's gluon takes arrays of another kind")
def test_the_example_learns():
    outs = conftest.run_workers(["-m", "gradwire.run", EXAMPLE, "--epochs", "3", "--width", "256"], servers=1)
    accuracies = [json.loads(out.splitlines()[-1])["accuracy"] for out in outs]
    assert accuracies[0] == accuracies[1] > 0.9, accuracies


def test_roles_of_dmlc_become_our_programs(tmp_path):
    """One command for all roles, told apart by DMLC_ROLE, as MXNet's launchers start it."""
    script = tmp_path / "script.py"
    script.write_text(UNCHANGED)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DMLC_")}
    environ |= {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(conftest.free_port()),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-m", "gradwire.run", str(script), "dist_sync"]
    roles = ["scheduler", "server", "worker", "worker"]
    processes = [
        subprocess.Popen(command, env={**environ, "DMLC_ROLE": role}, stdout=subprocess.PIPE, text=True) for role in roles
    ]
    try:
        outs = [process.communicate(timeout=conftest.WITHIN_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * 4, outs
    finally:
        for process in processes:
            process.kill()
    assert all(json.loads(out)[2] == [-1.5] * 4 for out in outs[2:]), outs


ONE_DIES = """
import os, signal, sys
import mxnet as mx
import gradwire.mxnet
kv = mx.kv.create("gradwire")
kv.init("w", mx.nd.zeros((4,)))
out = mx.nd.zeros((4,))
try:
    # Whichever call is under way when the word comes is the one that tells it.
    kv._barrier()
    if kv.rank == 1 and sys.argv[1] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kv.rank == 1:
        raise ValueError("bad batch 17")
    kv.push("w", mx.nd.ones((4,)))
    kv.pull("w", out=out)
    out.wait_to_read()
except mx.base.MXNetError as error:
    print("TOLD", error)
assert kv.num_dead_node == 1 == kv.get_num_dead_node()
print("DEAD", kv.num_dead_node)
"""


@pytest.mark.parametrize("how, code, cause", [("dies", -signal.SIGKILL, "worker 1"), ("raises", 1, "ValueError: bad batch 17")])
def test_a_worker_that_is_gone_is_told(tmp_path, how, code, cause):
    script = tmp_path / "script.py"
    script.write_text(ONE_DIES)
    with gradwire.launch(servers=1, workers=3, deadlines__operation_ms=20_000) as cluster:
        processes = [
            subprocess.Popen(
                [sys.executable, script, how],
                env={**cluster.environ(rank), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(3)
        ]
        outs = [process.communicate(timeout=conftest.WITHIN_S)[0] for process in processes]
    assert processes[1].returncode == code
    for out in (outs[0], outs[2]):
        assert "worker 1" in out and cause in out and "DEAD 1" in out, outs
