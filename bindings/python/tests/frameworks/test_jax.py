"""JAX: trees of arrays there and back."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradwire
import gradwire.jax as gj
from conftest import PATIENCE_S, together
from gradwire.launching import program

EXAMPLE = Path(__file__).parents[2] / "examples" / "jax_digits.py"


def tree(seed: float) -> dict:
    return {
        "dense": {"kernel": jnp.full((30, 20), seed), "bias": jnp.arange(20.0) * seed},
        "scale": jnp.float32(seed),
        "half": jnp.full(7, seed, jnp.bfloat16),
        "counts": [jnp.full(3, int(seed), jnp.int32)],
    }


def test_a_tree_is_averaged_over_workers() -> None:
    with gradwire.launch(servers=2, workers=2) as cluster:

        def work(rank: int) -> dict:
            with cluster.connect(node__rank=rank) as client:
                given = {key: value for key, value in tree(rank + 1.0).items() if key != "counts"}
                for _ in range(3):
                    mean = gj.push_pull(client, given)
                return mean

        for mean in together([lambda: work(0), lambda: work(1)]):
            assert (mean["dense"]["kernel"] == 1.5).all() and np.allclose(mean["dense"]["bias"], np.arange(20) * 1.5)
            assert mean["scale"] == 1.5 and mean["scale"].shape == ()
            assert mean["half"].dtype == jnp.bfloat16 and (mean["half"] == 1.5).all()


def test_servers_update_a_tree() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        whole = tree(4.0)
        whole.pop("counts")
        parameters = gj.Tree(client, whole, name="model", optimizer=gradwire.SGD(0.5))
        parameters.init(whole)
        pulled = parameters.pull()
        assert jax.tree_util.tree_all(jax.tree_util.tree_map(lambda a, b: bool((a == b).all()), pulled, whole))
        updated = parameters.push_pull(jax.tree_util.tree_map(jnp.ones_like, whole))
        assert (updated["dense"]["kernel"] == 3.5).all()
        kept = np.asarray(updated["dense"]["kernel"]).copy()
        parameters.push_pull(jax.tree_util.tree_map(jnp.ones_like, whole))
        assert np.array_equal(updated["dense"]["kernel"], kept), "JAX's arrays never change"
        with pytest.raises(gradwire.InputError):
            parameters.push_pull({"other": jnp.ones(3)})


def test_arrays_of_jax_are_read_where_they_lie_and_never_written() -> None:
    with gradwire.launch() as cluster, cluster.connect() as client:
        tensor = client.declare("w", (10, 3), optimizer=gradwire.Sum())
        one = jnp.ones((10, 3))
        for turn in range(1, 4):
            assert (client.push_pull(tensor, one).wait() == turn).all()
        assert client.stats()["arrays_in_place"] == 2
        with pytest.raises(gradwire.InputError) as refused:
            client.pull(tensor, out=one)
        assert refused.value.code == "read_only" and (one == 1).all()
        counts = client.declare("n", 3, jnp.int32, optimizer=gradwire.Sum())
        assert client.push_pull(counts, jnp.arange(3)).wait().tolist() == [0, 1, 2]


def test_gradients_of_a_jitted_loss() -> None:
    def loss(weights: jax.Array, data: jax.Array) -> jax.Array:
        return ((data @ weights) ** 2).mean()

    grad = jax.jit(jax.grad(loss))
    data = jax.random.normal(jax.random.PRNGKey(0), (8, 5))
    with gradwire.launch() as cluster, cluster.connect() as client:
        weights = gj.Tree(client, jnp.ones(5), optimizer=gradwire.SGD(0.1))
        weights.init(jnp.ones(5))
        mine = theirs = jnp.ones(5)
        for _ in range(5):
            theirs = weights.push_pull(grad(theirs, data))
            mine = mine - 0.1 * grad(mine, data)
        assert jnp.allclose(mine, theirs, rtol=1e-5)


COMPILED = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import functools
import gradwire
import gradwire.jax as gj
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
client = gradwire.connect()
rank = client.rank

# Mixed types, again and again, with donated buffers and in a loop of the compiled function.
@functools.partial(jax.jit, donate_argnums=0)
def mean(tree):
    return gj.push_pull(client, tree, name="mixed")

for turn in range(4):
    given = {"w": jnp.full((300, 40), float(rank + turn)), "h": jnp.full(5, rank, jnp.bfloat16), "s": jnp.float32(rank)}
    got = mean(given)
    assert got["h"].dtype == jnp.bfloat16 and got["s"].shape == ()
    assert all(bool((leaf == expected).all()) for leaf, expected in ((got["w"], turn + 0.5), (got["h"], 0.5), (got["s"], 0.5))), got

@jax.jit
def many(start):
    return jax.lax.fori_loop(0, 10, lambda at, x: gj.push_pull(client, x + rank, name="loop"), start)

assert many(jnp.zeros(3)).tolist() == [5.0] * 3

# Two names in one function go in one order on all workers.
two = jax.jit(lambda x: (gj.push_pull(client, x, name="a"), gj.push_pull(client, 2 * x, name="b")))
assert [one.tolist() for one in two(jnp.full(2, float(rank)))] == [[0.5] * 2, [1.0] * 2]

# Shards of a device meet those of the same device; arrays that jit has split are whole.
mesh = Mesh(np.array(jax.devices()), ("d",))
given = jnp.arange(4.0) + 10 * rank
split = jax.jit(shard_map(lambda x: gj.push_pull(client, x, name="split"), mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d")))
for _ in range(5):
    assert split(given).tolist() == [5.0, 6.0, 7.0, 8.0], split(given)
whole = jax.jit(lambda x: gj.push_pull(client, x, name="whole"))
assert whole(jax.device_put(given, NamedSharding(mesh, PartitionSpec("d")))).tolist() == [5.0, 6.0, 7.0, 8.0]

# optax: what one process with both batches gets.
def loss(w, x):
    return ((x @ w - 1.0) ** 2).mean()

data = np.random.RandomState(7).randn(2, 16, 6).astype("f4")
optimizer = optax.chain(gj.average_gradients(client), optax.adam(0.1))
alone = optax.adam(0.1)

@jax.jit
def step(w, state, x):
    updates, state = optimizer.update(jax.grad(loss)(w, x), state, w)
    return optax.apply_updates(w, updates), state

start = gj.broadcast(client, jnp.full(6, float(rank + 1)))
assert start.tolist() == [1.0] * 6
w, state, one, its = start, optimizer.init(start), start, alone.init(start)
for _ in range(20):
    w, state = step(w, state, data[rank])
    updates, its = alone.update(jax.grad(loss)(one, data.reshape(32, 6)), its, one)
    one = optax.apply_updates(one, updates)
assert jnp.allclose(w, one, rtol=1e-5), (w, one)

# Errors contain the reason.
try:
    jax.block_until_ready(jax.jit(lambda x: gj.push_pull(client, x, name="a"))(jnp.zeros(3)))
except Exception as error:
    assert "elements" in str(error) or "shape" in str(error), error
else:
    raise AssertionError("another shape")
try:
    jax.jit(lambda x: gj.push_pull(client, {"x": x}, name="a"))(jnp.zeros(2))
except gradwire.InputError as error:
    assert "structure" in str(error), error
client.barrier()
client.close()
print("well")
"""


def launched(*command: str) -> str:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    words = [program("gradwire"), "launch", "--workers", "2", "--servers", "2", "--", sys.executable, *command]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_compiled_functions_average_trees() -> None:
    said = launched("-c", COMPILED)
    assert said.count("well") == 2, said


def test_the_example_learns() -> None:
    lines = [line[line.index("{") :] for line in launched(str(EXAMPLE)).splitlines() if '"accuracy"' in line]
    ends = [json.loads(line) for line in lines]
    assert len(ends) == 2 and ends[0]["weights"] == ends[1]["weights"] and ends[0]["accuracy"] > 0.9, ends


BEFORE_THE_PAGE = """
import gradwire, jax, optax
import jax.numpy as jnp

parameters, loss = {"weights": jnp.zeros(3)}, lambda parameters, batch: ((parameters["weights"] - batch) ** 2).sum()
"""
AFTER_THE_PAGE = """
state = optimizer.init(parameters)
for _ in range(2):
    parameters, state = step(parameters, state, jnp.full(3, float(client.rank)))
print("moved", jax.block_until_ready(parameters["weights"]).tolist())
client.close()
"""


def test_the_page_s_lines_run(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[4] / "docs/python.md").read_text()
    [lines] = [one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "gradwire.jax" in one]
    script = tmp_path / "script.py"
    script.write_text(BEFORE_THE_PAGE + lines + AFTER_THE_PAGE)
    command = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", "--", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    moved = re.findall(r"moved (\[.*?\])", done.stdout + done.stderr)
    assert len(moved) == 2 and len(set(moved)) == 1 and "0.00" in moved[0], done.stdout
