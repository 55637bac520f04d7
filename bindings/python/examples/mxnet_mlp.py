"""An MLP of 784-2048-2048-10 in MXNet, batch 64, over its distributed key-value store: a script as one writes it for MXNet
itself. It learns handwritten digits, the project's, scaled up to 28 by 28.

    gradwire launch --workers 2 --servers 1 -- python -m gradwire.run mxnet_mlp.py

Without `-m gradwire.run` it runs over MXNet's own store, with its launcher; with `--kvstore none` by itself. Each worker
learns from its share of the rows, and prints the accuracy on rows that nobody learnt from, and what an iteration took on
average, without those of the first epoch.
"""

import argparse
import json
import time
from pathlib import Path

import mxnet as mx
import numpy as np

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits" / "digits.csv"
BATCH = 64
# Every fifth row is held out.
HELD_OUT = 5


def load(file):
    """Rows of 64 pixels, 0 to 16, and their digit; pixels are repeated to 28 by 28."""
    rows = np.loadtxt(file, delimiter=",", dtype="f4")
    small = rows[:, :64].reshape(-1, 8, 8) / 16
    near = np.arange(28) * 8 // 28
    return small[:, near][:, :, near].reshape(-1, 784), rows[:, 64]


def net_of(width):
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Dense(width, in_units=784, activation="relu"),
        mx.gluon.nn.Dense(width, in_units=width, activation="relu"),
        mx.gluon.nn.Dense(10, in_units=width),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def accuracy(net, images, digits):
    guesses = np.concatenate(
        [net(mx.nd.array(images[at : at + BATCH])).asnumpy().argmax(axis=1) for at in range(0, len(images), BATCH)]
    )
    return float((guesses == digits).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvstore", default="dist_sync")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--optimizer", default="sgd", help="sgd has a momentum of 0.9, all others their usual options")
    args = parser.parse_args()
    mx.random.seed(1)
    images, digits = load(DIGITS)
    held_out = np.arange(len(digits)) % HELD_OUT == 0
    kv = None if args.kvstore == "none" else mx.kv.create(args.kvstore)
    rank, workers = (0, 1) if kv is None else (kv.rank, kv.num_workers)
    mine = np.flatnonzero(~held_out)[rank::workers]
    # The same number of batches on every worker.
    mine = mine[: (~held_out).sum() // workers // BATCH * BATCH]
    net, loss = net_of(args.width), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    options = {"learning_rate": args.learning_rate, **({"momentum": 0.9} if args.optimizer == "sgd" else {})}
    trainer = mx.gluon.Trainer(net.collect_params(), args.optimizer, options, kvstore=kv)
    order = np.random.RandomState(rank)
    times = []
    for _ in range(args.epochs):
        order.shuffle(mine)
        for at in range(0, len(mine), BATCH):
            rows, started = mine[at : at + BATCH], time.perf_counter()
            x, y = mx.nd.array(images[rows]), mx.nd.array(digits[rows])
            with mx.autograd.record():
                value = loss(net(x), y)
            value.backward()
            trainer.step(BATCH * workers)
            value.wait_to_read()
            times.append(time.perf_counter() - started)
    told = {
        "kvstore": args.kvstore,
        "rank": rank,
        "accuracy": accuracy(net, images[held_out], digits[held_out]),
        "ms_per_iteration": round(1e3 * float(np.mean(times[len(mine) // BATCH :] or times)), 2),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
