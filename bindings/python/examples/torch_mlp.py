"""An MLP of 784-2048-2048-10 in torch, batch 64, whose gradients are averaged over workers. It learns handwritten digits, the
project's, scaled up to 28 by 28.

    gradwire launch --workers 2 --servers 1 -- python torch_mlp.py
    python torch_mlp.py --alone 2

Each worker learns from its share of the rows, and prints the accuracy on rows that nobody learnt from. With `--alone 2` one
process, without Gradwire, learns from the batches of two workers: the same numbers, but for rounding.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gradwire
from gradwire.torch import DistributedOptimizer, broadcast_parameters

DIGITS = Path(__file__).resolve().parents[3] / "examples" / "digits" / "digits.csv"
BATCH = 64
# Every fifth row is held out.
HELD_OUT = 5


def load(file):
    """Rows of 64 pixels, 0 to 16, and their digit; pixels are repeated to 28 by 28."""
    rows = np.loadtxt(file, delimiter=",", dtype="f4")
    small = rows[:, :64].reshape(-1, 8, 8) / 16
    near = np.arange(28) * 8 // 28
    return torch.from_numpy(small[:, near][:, :, near].reshape(-1, 784)), torch.from_numpy(rows[:, 64]).long()


def net_of(width):
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


class Batches:
    """A worker's share of the rows, shuffled anew in each epoch."""

    def __init__(self, rows, rank, workers):
        # The same number of batches on every worker.
        self.mine = rows[rank::workers][: len(rows) // workers // BATCH * BATCH]
        self.random = np.random.RandomState(rank)

    def epoch(self):
        self.random.shuffle(self.mine)
        return self.mine.reshape(-1, BATCH).copy()


def learn(net, optimizer, shares, images, digits, args, told):
    """Trains on these shares' batches; returns milliseconds of an iteration."""
    steps, started = 0, time.perf_counter()
    for epoch in range(args.epochs):
        losses = []
        for rows in np.stack([share.epoch() for share in shares], axis=1).reshape(-1, BATCH * len(shares)):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images[rows]), digits[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        steps += len(losses)
        if told:
            print(f"epoch {epoch + 1} of {args.epochs}: loss {np.mean(losses):.4f}", flush=True)
    return 1e3 * (time.perf_counter() - started) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--alone", type=int, metavar="WORKERS", help="one process with what so many workers learn from")
    args = parser.parse_args()
    torch.manual_seed(1)
    images, digits = load(DIGITS)
    held_out = np.arange(len(digits)) % HELD_OUT == 0
    rows = np.flatnonzero(~held_out)
    net = net_of(args.width)
    optimizer = torch.optim.SGD(net.parameters(), args.learning_rate, momentum=0.9)
    if args.alone:
        rank, shares = 0, [Batches(rows, rank, args.alone) for rank in range(args.alone)]
        ms = learn(net, optimizer, shares, images, digits, args, told=True)
    else:
        with gradwire.connect() as client:
            rank, shares = client.rank, [Batches(rows, client.rank, client.workers)]
            broadcast_parameters(net.named_parameters(), client=client)
            optimizer = DistributedOptimizer(optimizer, net.named_parameters(), client=client)
            ms = learn(net, optimizer, shares, images, digits, args, told=rank == 0)
    with torch.no_grad():
        scores = net(images[held_out])
    told = {
        "rank": rank,
        "accuracy": round((scores.argmax(1) == digits[held_out]).float().mean().item(), 4),
        "loss": nn.functional.cross_entropy(scores, digits[held_out]).item(),
        "ms_per_iteration": round(ms, 2),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
