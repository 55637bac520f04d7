"""An MLP of 64-128-10 in JAX that learns handwritten digits on all workers; each learns from its share of the rows.

    gradwire launch --workers 2 --servers 1 -- python bindings/python/examples/jax_digits.py

The whole step is one compiled function, with the mean of the gradients in it. It prints the accuracy on rows that nobody learned from,
and a checksum of the weights, which are the same on every worker.
"""

import argparse
import functools
import json
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gradwire
import gradwire.jax as gj

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits" / "digits.csv"
# Every fifth row is held out.
HELD_OUT = 5


def parameters_of(key):
    """Two layers: weights in bfloat16, biases in float32."""
    first, second = jax.random.split(key)
    return {
        "first": {"weights": jax.random.normal(first, (64, 128), jnp.bfloat16) / 8, "bias": jnp.zeros(128)},
        "second": {"weights": jax.random.normal(second, (128, 10), jnp.bfloat16) / 11, "bias": jnp.zeros(10)},
    }


def scores_of(parameters, images):
    first, second = parameters["first"], parameters["second"]
    hidden = jax.nn.relu(images @ first["weights"].astype(jnp.float32) + first["bias"])
    return hidden @ second["weights"].astype(jnp.float32) + second["bias"]


def loss_of(parameters, images, digits):
    chosen = jax.nn.log_softmax(scores_of(parameters, images))[jnp.arange(len(digits)), digits]
    return -chosen.mean()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--epochs", type=int, default=20)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--learning-rate", type=float, default=0.5)
    args = arguments.parse_args()
    rows = np.loadtxt(DIGITS, delimiter=",", dtype="f4")
    images, digits = rows[:, :64] / 16, rows[:, 64].astype("i4")
    held_out = np.arange(len(digits)) % HELD_OUT == 0
    with gradwire.connect() as client:
        mean = gj.average_gradients(client)

        # The parameters' memory is used again for the new ones.
        @functools.partial(jax.jit, donate_argnums=0)
        def step(parameters, images, digits):
            loss, gradients = jax.value_and_grad(loss_of)(parameters, images, digits)
            gradients, _ = mean.update(gradients, ())
            return jax.tree.map(lambda p, g: p - args.learning_rate * g.astype(p.dtype), parameters, gradients), loss

        parameters = gj.broadcast(client, parameters_of(jax.random.PRNGKey(client.rank)))
        mine = np.flatnonzero(~held_out)[client.rank :: client.workers]
        # The same number of batches on every worker.
        mine = mine[: (~held_out).sum() // client.workers // args.batch * args.batch]
        order, loss = np.random.RandomState(client.rank), None
        for _ in range(args.epochs):
            order.shuffle(mine)
            for at in range(0, len(mine), args.batch):
                batch = mine[at : at + args.batch]
                parameters, loss = step(parameters, images[batch], digits[batch])
        guesses = np.asarray(scores_of(parameters, images[held_out])).argmax(axis=1)
        weights = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(parameters)))
        told = {"rank": client.rank, "loss": float(loss), "accuracy": float((guesses == digits[held_out]).mean()), "weights": weights}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
