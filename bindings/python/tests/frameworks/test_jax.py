"""JAX: trees of arrays there and back."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradwire
import gradwire.jax as gj
from conftest import together


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


