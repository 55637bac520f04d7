"""Logistic regression on sparse data in LibSVM's format: every feature's weight is a row of a table, made when it is first
seen, and servers update each row by FTRL, at once, without waiting for anybody.

    python sparse_logistic.py --workers 2

Without `--data FILE` it makes data from a seed: see `generate`. Then the model that made them is known, and the learnt one is
held against it on rows that nobody learnt from. A line of LibSVM is a label (1, and 0 or -1) and `feature:value` pairs; other
lines are errors, told with their number.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np

import gradwire

# Every fifth row is held out.
HELD_OUT = 5
FEATURE_MAX = (1 << 64) - 1


def generate(path, rows, features, seed):
    """Writes `rows` lines, and returns the chance of label 1 of each.

    From numpy's PCG64 of the seed, in this order: a weight for each feature, normal, of which nine in ten are 0; for each
    row 12 to 36 features, of which low ones are common (the square of an even number below 1 times `features`), each with
    the value 1; the label is 1 with the chance that the logistic function of the weights' sum, less the mean of all such
    sums, says.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    weights = random.normal(0, 2, features) * (random.random(features) < 0.1)
    present = [np.unique((random.random(count) ** 2 * features).astype(int)) for count in random.integers(12, 37, rows)]
    sums = np.array([weights[ids].sum() for ids in present])
    chances = 1 / (1 + np.exp(sums.mean() - sums))
    labels = random.random(rows) < chances
    with open(path, "w", encoding="ascii") as file:
        for label, ids in zip(labels, present):
            file.write(f"{int(label)} {' '.join(f'{feature}:1' for feature in ids)}\n")
    return chances


def read_libsvm(path):
    """Each line's label, 0 or 1, its features and their values."""
    rows = []
    with open(path, encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            try:
                rows.append(parse(words))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    return rows


def parse(words):
    """A line's label, features and values; says what is wrong with it."""
    label = float(words[0])
    if label not in (-1, 0, 1):
        raise ValueError(f"{words[0]!r} is no label; use 1, and 0 or -1")
    pairs = [word.partition(":") for word in words[1:]]
    if not all(feature.isdecimal() and int(feature) <= FEATURE_MAX for feature, _, _ in pairs):
        raise ValueError("a feature is no whole number of 64 bits; use feature:value")
    values = np.array([float(value) for _, _, value in pairs], np.float32)
    if not np.isfinite(values).all():
        raise ValueError("a value is not finite")
    return label > 0, np.array([int(feature) for feature, _, _ in pairs], np.uint64), values


class Batch:
    """Rows side by side: the features among them, each once, and the place of each entry in those."""

    def __init__(self, rows):
        self.labels = np.array([label for label, _, _ in rows], np.float32)
        self.features, self.places = np.unique(np.concatenate([ids for _, ids, _ in rows]), return_inverse=True)
        self.values = np.concatenate([values for _, _, values in rows])
        self.rows = np.repeat(np.arange(len(rows)), [len(ids) for _, ids, _ in rows])

    def chances(self, weights):
        """Of label 1, by these weights of its features."""
        sums = np.bincount(self.rows, weights[self.places] * self.values, len(self.labels))
        return 1 / (1 + np.exp(-sums))

    def gradient(self, chances):
        """Of the rows' losses, for each of its features."""
        errors = (chances - self.labels)[self.rows] * self.values
        return np.bincount(self.places, errors, len(self.features)).astype(np.float32)


def weights_of(table, features):
    """Their rows, which have one element each."""
    return table.pull_rows(features).wait().ravel()


def work(client, path, args):
    """Learns from this worker's share of the rows. Rank 0 returns what is learnt of the held out ones."""
    rule = gradwire.FTRL(args.alpha, beta=args.beta, l1=args.l1, l2=args.l2, average=False)
    table = client.table("weights", 1, optimizer=rule)
    rows = read_libsvm(path)
    held_out = [row for at, row in enumerate(rows) if at % HELD_OUT == 0]
    mine = [row for at, row in enumerate(rows) if at % HELD_OUT][client.rank :: client.workers]
    random = np.random.default_rng(client.rank)
    for epoch in range(args.epochs):
        losses, pushes = [], []
        for at in range(0, len(mine), args.batch):
            batch = Batch(mine[at : at + args.batch])
            chances = batch.chances(weights_of(table, batch.features))
            # The next pull of this worker sees it, whether or not somebody waits here.
            pushes.append(table.push_rows(batch.features, batch.gradient(chances).reshape(-1, 1)))
            losses.append(log_loss(chances, batch.labels))
        gradwire.wait_all(pushes)
        if client.rank == 0:
            print(f"epoch {epoch + 1} of {args.epochs}: loss {np.mean(losses):.4f}", flush=True)
        random.shuffle(mine)
    client.barrier()
    if client.rank:
        return None
    batch = Batch(held_out)
    weights = weights_of(table, batch.features)
    return batch.labels, batch.chances(weights), float((weights != 0).mean())


def log_loss(chances, labels):
    return -float(np.log(np.clip(np.where(labels > 0, chances, 1 - chances), 1e-7, 1)).mean())


def auc(chances, labels):
    """How often a row of label 1 has the higher chance than one of label 0; ties count half."""
    _, places, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    ones = int(labels.sum())
    others = len(labels) - ones
    return float((ranks[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * others)) if ones and others else math.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a file in LibSVM's format; else data are made")
    parser.add_argument("--rows", type=int, default=20_000, help="that are made")
    parser.add_argument("--features", type=int, default=2_000, help="of the rows that are made")
    parser.add_argument("--seed", type=int, default=1, help="of the rows that are made")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--alpha", type=float, default=0.2, help="FTRL's learning rate")
    parser.add_argument("--beta", type=float, default=1.0)
    parser.add_argument("--l1", type=float, default=20.0, help="what makes weights of no use 0")
    parser.add_argument("--l2", type=float, default=0.0)
    parser.add_argument("--transport", choices=["shm", "tcp", "verbs"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path, chances = args.data, None
        if path is None:
            path = Path(directory) / "made.svm"
            chances = generate(path, args.rows, args.features, args.seed)
            print(f"{args.rows} rows of {args.features} features are made from seed {args.seed}", flush=True)
        results = gradwire.launch(
            work, path, args, servers=args.servers, workers=args.workers, transport=args.transport
        )
    labels, learnt, share = results[0]
    told = {
        "held_out": len(labels),
        "auc": round(auc(learnt, labels), 4),
        "accuracy": round(float(((learnt > 0.5) == (labels > 0)).mean()), 4),
        "weights_not_0": round(share, 3),
    }
    if chances is not None:
        made = chances[::HELD_OUT]
        told["auc_of_generator"] = round(auc(made, labels), 4)
        told["accuracy_of_generator"] = round(float(((made > 0.5) == (labels > 0)).mean()), 4)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
