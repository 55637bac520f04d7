"""One script over MXNet's own store and over this one, where what counts is what MXNet's servers make of it."""

import json
import os
import subprocess
import sys

import conftest
import mxnet as mx
import numpy as np
import pytest

import gradwire

#: Workers take turns, so that what each contribution meets is known.
ASYNCHRONOUS = """
import json
import mxnet as mx
kv = mx.kv.create("dist_async")
seen, out = [], mx.nd.zeros((4,))
for key, scheduler in (
    (3, mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=1.0)),
    (4, mx.lr_scheduler.MultiFactorScheduler([2, 6], 0.1, base_lr=1.0)),
):
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0, lr_scheduler=scheduler))
    kv.init(key, mx.nd.zeros((4,)))
    for turn in range(6):
        for rank in range(kv.num_workers):
            if rank == kv.rank:
                kv.push(key, mx.nd.ones((4,)))
                kv.pull(key, out=out)
                out.wait_to_read()
            kv._barrier()
        kv.pull(key, out=out)
        seen.append(round(float(out.asnumpy()[0]), 5))
        kv._barrier()
print(json.dumps(seen))
"""

#: Each worker pushes a row of its own and one that turns, some of zeros; row 7 is nobody's.
ROWS = """
import json
import mxnet as mx
import numpy as np
kv = mx.kv.create("dist_sync")
shape, said = (8, 2), {}
optimizers = {
    "momentum": lambda: mx.optimizer.SGD(learning_rate=0.5, momentum=0.5, lazy_update=True),
    "decay": lambda: mx.optimizer.SGD(learning_rate=0.5, wd=0.1, lazy_update=True),
    "adam": lambda: mx.optimizer.Adam(learning_rate=0.1, lazy_update=True),
    "whole": lambda: mx.optimizer.SGD(learning_rate=0.5, momentum=0.5, wd=0.1, lazy_update=False),
}
for key, (name, make) in enumerate(optimizers.items()):
    kv.set_optimizer(make())
    kv.init(key, mx.nd.sparse.row_sparse_array((np.ones(shape), np.arange(8)), shape=shape))
    kv._barrier()
    for step in range(6):
        ids = sorted({kv.rank, 2 + step % 5})
        values = np.full((len(ids), 2), step % 3, "f4")
        kv.push(key, mx.nd.sparse.row_sparse_array((values, np.array(ids)), shape=shape))
        out = mx.nd.sparse.zeros("row_sparse", shape)
        kv.row_sparse_pull(key, out=out, row_ids=mx.nd.arange(8))
        out.wait_to_read()
    said[name] = out.asnumpy().tolist()
    kv._barrier()
print(json.dumps(said))
"""


def over_mxnet(command, workers=2):
    """What each worker says over MXNet's own store."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DMLC_")}
    environ |= {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(conftest.free_port()), "DMLC_NODE_HOST": "127.0.0.1"}
    environ |= {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers)}
    start = lambda words, role: subprocess.Popen(
        [sys.executable, *map(str, words)], env={**environ, "DMLC_ROLE": role}, stdout=subprocess.PIPE, text=True
    )
    others = [start(["-c", "import mxnet"], role) for role in ("scheduler", "server")]
    processes = [start(command, "worker") for _ in range(workers)]
    try:
        return [process.communicate(timeout=conftest.WITHIN_S)[0] for process in processes]
    finally:
        for process in [*processes, *others]:
            process.kill()
            process.wait()


def test_asynchronous_rates_fall_as_mxnets(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ASYNCHRONOUS)
    theirs = [json.loads(out.splitlines()[-1]) for out in over_mxnet([script])]
    ours = [json.loads(out) for out in conftest.run_workers(["-m", "gradwire.run", script], servers=1)]
    assert ours[0] == ours[1] == theirs[0] == theirs[1], (ours, theirs)
    # Two workers, and rates that fall with the third turn, and with the second and the fourth.
    assert theirs[0][:3] == [-2.0, -4.0, -5.0] and theirs[0][6:8] == [-2.0, -2.2], theirs


def test_rows_are_updated_as_mxnets(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ROWS)
    theirs = [json.loads(out.splitlines()[-1]) for out in over_mxnet([script])]
    ours = [json.loads(out.splitlines()[-1]) for out in conftest.run_workers(["-m", "gradwire.run", script])]
    assert theirs[0] == theirs[1] and ours[0] == ours[1]
    for name, weights in theirs[0].items():
        assert np.allclose(ours[0][name], weights, rtol=2e-5, atol=2e-6), (name, ours[0][name], weights)
        assert (weights[7] == [1, 1]) == (name != "whole"), (name, weights)


def test_only_releases_that_were_tried_are_taken(monkeypatch):
    from gradwire.mxnet import _connection

    monkeypatch.setattr(mx, "__version__", "1.7.0")
    with pytest.raises(mx.base.MXNetError, match="unsupported MXNet 1.7.0: use one of 1.9.1"):
        _connection.start(None)
    with gradwire.launch(servers=1, workers=1) as cluster, cluster.connect() as client:
        monkeypatch.undo()
        assert _connection.start(client) is not None
