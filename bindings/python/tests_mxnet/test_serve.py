"""Servers that apply optimizers of MXNet (`gradwire serve`), beside MXNet's own updater in one process."""

import os
import subprocess
import sys
from pathlib import Path

import conftest

from gradwire.launching import PROGRAMS_VARIABLE, _clean_environ, program

RULES = """
import gradwire.serve
import mxnet as mx

class Mine(mx.optimizer.Optimizer):
    def __init__(self, speed=2.0, **options):
        super().__init__(**options)
        self.speed = speed

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

    def one(self, index, weight, grad, state):
        self._update_count(index)
        state[:] += grad.tostype("default")
        weight[:] = weight - self._get_lr(index) * self.speed * state * self._index_update_count[index]

    if mx.__version__ < "2":
        def update(self, index, weight, grad, state):
            self.one(index, weight, grad, state)
    else:
        def step(self, *lists):
            [self.one(*some) for some in zip(*lists)]

class Kept(Mine):
    def __init__(self, speed=2.0, **options):
        super().__init__(speed, **options)
        self._hidden, self.seen = 1.0, {}

    def create_state(self, index, weight):
        return {"sums": [mx.nd.zeros(weight.shape)], "count": [0]}

    def one(self, index, weight, grad, state):
        self._update_count(index)
        state["count"][0] += 1
        self.seen[index] = self.seen.get(index, 0) + 1
        state["sums"][0][:] += grad
        weight[:] = weight - self._get_lr(index) * self._hidden * state["sums"][0] * (state["count"][0] + self.seen[index])

if __name__ == "__gradwire_updates__":
    gradwire.serve.register(Mine, Kept, mx.optimizer.DCASGD, mx.optimizer.SGD, mx.optimizer.Adam, mx.optimizer.Signum, mx.optimizer.NAG)
"""

# Each worker pushes in its turn, so that the order of the updates is known.
VALUES = """
import os, sys
sys.path.insert(0, sys.argv[1])
os.environ["MXNET_GRADWIRE_UPDATE"] = "serve"
import mxnet as mx
import numpy as np
from rules import Mine

opt, rates = mx.optimizer, mx.lr_scheduler
OPTIMIZERS = {
    "dcasgd": lambda: opt.DCASGD(learning_rate=0.1, lamda=0.5, wd=0.01),
    "clipped": lambda: opt.SGD(learning_rate=0.1, momentum=0.9, clip_gradient=0.2, rescale_grad=0.5),
    "cosine": lambda: opt.Adam(lr_scheduler=rates.CosineScheduler(20, base_lr=0.1, final_lr=0.01, warmup_steps=3)),
    "factor": lambda: opt.SGD(lr_scheduler=rates.FactorScheduler(2, 0.5, base_lr=0.1)),
    "steps": lambda: opt.NAG(momentum=0.9, wd=0.1, lr_scheduler=rates.MultiFactorScheduler([2, 4], 0.1, base_lr=0.1)),
    "signum": lambda: opt.Signum(learning_rate=0.01, momentum=0.9, wd_lh=0.1),
    "mine": lambda: Mine(speed=3.0, learning_rate=0.1),
}
SHAPES = {0: (4, 3), 1: (7,), 2: (1,)}
ROUNDS = 4

def gradient(turn, key, dtype="float32"):
    return mx.nd.array(np.random.RandomState(100 * turn + key).randn(*SHAPES[key]), dtype=dtype)

def in_turn(kv, do):
    for turn in range(ROUNDS * kv.num_workers):
        if turn % kv.num_workers == kv.rank:
            do(turn)
        kv._barrier()

def check(name, kv, keys, local):
    for key in keys:
        out = mx.nd.zeros(local[key].shape, dtype=local[key].dtype)
        kv.pull(key, out)
        assert np.array_equal(out.asnumpy(), local[key].tostype("default").asnumpy()), (name, key, out, local[key])

for name, make in OPTIMIZERS.items():
    for late in (False, True):
        kv, here = mx.kv.create("dist_async"), mx.optimizer.get_updater(make())
        start = {key: mx.nd.ones(shape) for key, shape in SHAPES.items()}
        if not late:
            kv.set_optimizer(make())
        kv.init(list(start), list(start.values()))
        if late:
            kv.set_optimizer(make())
        def do(turn):
            for key in SHAPES:
                kv.push(key, gradient(turn, key))
        in_turn(kv, do)
        for turn in range(ROUNDS * kv.num_workers):
            for key in SHAPES:
                here(key, gradient(turn, key), start[key])
        check(name, kv, SHAPES, start)

# A rate that rank 0 changes, and multipliers of parameters.
kv, mine, local = mx.kv.create("dist_async"), opt.SGD(learning_rate=0.1, momentum=0.5), mx.nd.ones((4, 3))
mine.set_lr_mult({0: 0.5})
here = opt.SGD(learning_rate=0.1, momentum=0.5)
here.set_lr_mult({0: 0.5})
here = mx.optimizer.get_updater(here)
kv.set_optimizer(mine)
kv.init(0, local)
def do(turn):
    if turn == 4:
        mine.set_learning_rate(0.01)
    kv.push(0, gradient(turn, 0))
in_turn(kv, do)
for turn in range(ROUNDS * kv.num_workers):
    if turn == 4:
        here.optimizer.set_learning_rate(0.01)
    here(0, gradient(turn, 0), local)
check("changed", kv, [0], {0: local})

# Halves with exact weights beside.
kv, local = mx.kv.create("dist_async"), mx.nd.ones((4, 3), dtype="float16")
make = lambda: opt.SGD(learning_rate=0.001, momentum=0.9, multi_precision=True)
kv.set_optimizer(make())
kv.init(0, local)
in_turn(kv, lambda turn: kv.push(0, gradient(turn, 0, "float16")))
here = mx.optimizer.get_updater(make())
for turn in range(ROUNDS * kv.num_workers):
    here(0, gradient(turn, 0, "float16"), local)
check("halves", kv, [0], {0: local})

# Rows: lazily, and by an optimizer that knows no row-sparse weights.
for name, make in [("lazy", lambda: opt.Adam(learning_rate=0.1, lazy_update=True)), ("mine", OPTIMIZERS["mine"])]:
    kv, start = mx.kv.create("dist_async"), mx.nd.sparse.row_sparse_array(mx.nd.ones((6, 2)))
    kv.set_optimizer(make())
    kv.init("rows", start)
    def rows(turn):
        ids = sorted({turn % 6, (turn * 2 + 1) % 6})
        return mx.nd.sparse.row_sparse_array((np.full((len(ids), 2), turn + 1, "float32"), ids), shape=(6, 2))
    in_turn(kv, lambda turn: kv.push("rows", rows(turn)))
    here, local = mx.optimizer.get_updater(make()), (start if name == "lazy" else mx.nd.ones((6, 2)))
    for turn in range(ROUNDS * kv.num_workers):
        here(0, rows(turn), local)
    out, some = mx.nd.sparse.zeros("row_sparse", (6, 2)), mx.nd.array([5, 1, 1, 3])
    kv.row_sparse_pull("rows", out, row_ids=some)
    wanted = local.tostype("default").asnumpy()
    wanted[[0, 2, 4]] = 0
    assert np.array_equal(out.asnumpy(), wanted) and out.indices.asnumpy().tolist() == [1, 3, 5], (name, out, local)

# Failures raise errors with the reason.
kv = mx.kv.create("dist_async")
kv.set_optimizer(opt.SGD())
kv.init(0, mx.nd.ones((2,)))
try:
    kv.push(0, mx.nd.ones((3,)))
    kv.pull(0, mx.nd.ones((2,)))
except mx.base.MXNetError as error:
    assert "shape" in str(error), error
else:
    raise AssertionError("a gradient of another shape")
for optimizer, words in [(opt.RMSProp(), "no mxnet optimizer RMSProp"), (opt.SGD(param_idx2name={0: "a"}, sym=None), None)]:
    kv = mx.kv.create("dist_async")
    try:
        kv.set_optimizer(optimizer)
        kv._barrier()
        assert words is None, words
    except mx.base.MXNetError as error:
        assert words and words in str(error), error
print("well")
"""


def launch(directory, script, *words, servers=2, workers=2, settings=(), prefix=(), options=(), code=0, rules=RULES):
    """Runs a script under `gradwire launch`, with servers that apply the rules; returns what was said."""
    (directory / "rules.py").write_text(rules)
    (directory / "script.py").write_text(script)
    settings = ["deadlines.operation_ms=20000", *settings]
    command = [program("gradwire"), "launch", "-n", str(workers), "-s", str(servers), "--every-role", "--grace-ms", "500"]
    command += [word for setting in settings for word in ("--set", setting)] + list(prefix)
    command += ["--", sys.executable, "-m", "gradwire.run", "--updates", directory / "rules.py", *options, directory / "script.py", directory, *words]
    environ = {**_clean_environ(), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environ[PROGRAMS_VARIABLE] = str(Path(program("gradwire")).parent)
    done = subprocess.run([*map(str, command)], env=environ, capture_output=True, text=True, timeout=conftest.WITHIN_S, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def test_values_are_those_of_mxnets_updater(tmp_path):
    said = launch(tmp_path, VALUES)
    assert said.count("well") == 2, said[-3000:]


# Rank 0 kills a server between two of its pushes.
KILLED = """
import os, signal, sys
os.environ["MXNET_GRADWIRE_UPDATE"] = "serve"
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import mxnet as mx
import numpy as np
from rules import Mine

kv = mx.kv.create("dist_async")
kv.set_optimizer(Mine(learning_rate=0.1))
kv.init(list(range(6)), [mx.nd.ones((3,))] * 6)
# Rows that are not touched before the server fails, and a rate that falls.
rows, start = mx.kv.create("dist_async"), mx.nd.sparse.row_sparse_array(mx.nd.ones((8, 2)))
make = lambda: mx.optimizer.Adam(lr_scheduler=mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.1), lazy_update=True)
rows.set_optimizer(make())
rows.init("rows", start)
lazy = mx.optimizer.get_updater(make())

def row(turn):
    return mx.nd.sparse.row_sparse_array((np.full((1, 2), turn + 1, "float32"), [turn % 8]), shape=(8, 2))

def servers():
    children = Path(f"/proc/{os.getppid()}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    return [pid for pid in pids if b"DMLC_ROLE=server" in Path(f"/proc/{pid}/environ").read_bytes()]

here, local = mx.optimizer.get_updater(Mine(learning_rate=0.1)), [mx.nd.ones((3,)) for _ in range(6)]
for turn in range(12):
    if turn % 2 == kv.rank:
        if turn in (4, 8):
            os.kill(servers()[turn // 4 - 1], signal.SIGKILL)
        kv.push(list(range(6)), [mx.nd.ones((3,)) * turn] * 6)
        rows.push("rows", row(turn))
        rows._serving.remote.settle()
    kv._barrier()
    for key in range(6):
        here(key, mx.nd.ones((3,)) * turn, local[key])
    lazy(0, row(turn), start)
got = mx.nd.sparse.zeros("row_sparse", (8, 2))
rows.row_sparse_pull("rows", got, row_ids=mx.nd.arange(8))
assert np.array_equal(got.asnumpy(), start.tostype("default").asnumpy()), (got.asnumpy(), start.tostype("default").asnumpy())
out = [mx.nd.zeros((3,)) for _ in range(6)]
kv.pull(list(range(6)), out)
assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(out, local)), (out, local)
print("well")
"""


def test_nothing_is_lost_with_a_server(tmp_path):
    settings = ["cluster.replicas=1", "cluster.servers_max=4"]
    said = launch(tmp_path, KILLED, settings=settings, prefix=["--restart=4"])
    assert said.count("well") == 2, said[-3000:]


# Pushes to a store, and says what it has then.
CONTINUED = """
import sys
sys.path.insert(0, sys.argv[1])
import mxnet as mx
from rules import Kept, Mine

def kept():
    made = Kept(learning_rate=0.1)
    made._hidden = 0.5
    return made

turn = int(sys.argv[2])
for make, name in ((lambda: Mine(learning_rate=0.1), "mine"), (kept, "kept")):
    kv, here, local = mx.kv.create("dist_async"), mx.optimizer.get_updater(make()), mx.nd.ones((3,))
    kv.set_optimizer(make())
    kv.init(0, mx.nd.ones((3,)))
    for _ in range(2):
        kv.push(0, mx.nd.ones((3,)))
    for _ in range(2 * turn):
        here(0, mx.nd.ones((3,)), local)
    out = mx.nd.zeros((3,))
    kv.pull(0, out)
    print(name, "is", "right" if out.asnumpy().tolist() == local.asnumpy().tolist() else (out, local))
try:
    kv.save_optimizer_states("states")
except mx.base.MXNetError as error:
    assert "--state" in str(error), error
"""


def test_a_job_continues_from_a_state(tmp_path):
    options = ["--state", tmp_path / "state"]
    for turn in ("1", "2"):
        said = launch(tmp_path, CONTINUED, turn, servers=1, workers=1, options=options)
        assert "mine is right" in said and "kept is right" in said, said
    # Other servers had other keys.
    failed = launch(tmp_path, CONTINUED, "1", servers=2, workers=1, options=options, code=78)
    assert "is of a job with 1 servers" in failed, failed
    (tmp_path / "state" / "updates-0.state").write_bytes(b"not one")
    assert "the file is damaged" in launch(tmp_path, CONTINUED, "1", servers=1, workers=1, options=options, code=78)
    assert "registers no optimizer" in launch(tmp_path, CONTINUED, "1", servers=1, workers=1, code=78, rules="")


PLAIN = """
import mxnet as mx
kv = mx.kv.create("dist_async")
try:
    kv.set_optimizer(mx.optimizer.DCASGD())
except mx.base.MXNetError as error:
    print(error)
"""


def test_servers_that_apply_no_optimizers_are_told_so(tmp_path):
    (tmp_path / "script.py").write_text(PLAIN)
    said = conftest.run_workers(["-m", "gradwire.run", tmp_path / "script.py"], servers=1)
    assert all("servers have no rule for this optimizer (Gradwire has no rule DCASGD)" in out and "gradwire serve" in out for out in said), said
