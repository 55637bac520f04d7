"""Word vectors from the project's own pages: skip-gram with negative sampling, whose vectors are rows of two tables.

    python embedding.py --workers 2 --like worker

A word's row is found by a number of 64 bits that follows from the word, and is made, from a seed, when somebody first pulls
it; no worker has a table of its own. Each worker goes through its share of the text, pulls the rows that a batch needs and
pushes their gradients, without waiting for anybody; servers apply AdaGrad to each row. At the end rank 0 prints the words
whose vectors are nearest to those of some words.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

import gradwire

ROOT = Path(__file__).resolve().parents[3]
# As many words to each side of a word are near it, at most.
WINDOW = 4
NEGATIVES = 5
NEIGHBOURS = 4


def text_of(files):
    """Words of the pages, paragraph by paragraph, in small letters."""
    paragraphs = (part for file in files for part in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")))
    return [re.findall(r"[a-z]{2,}", part.lower()) for part in paragraphs]


class Words:
    """The words that come often enough, the commonest first, and the key of each."""

    def __init__(self, text, at_least):
        counts = Counter(word for paragraph in text for word in paragraph)
        self.all = [word for word, count in counts.most_common() if count >= at_least]
        self.number = {word: at for at, word in enumerate(self.all)}
        self.keys = np.array([gradwire.key_of_name(word) for word in self.all], np.uint64)
        self.counts = np.array([counts[word] for word in self.all], float)
        # Drawn as negatives: common words less often than they come.
        self.drawn = np.cumsum(self.counts**0.75 / (self.counts**0.75).sum())

    def pairs(self, text, random):
        """Each word with what is near it. Common words are left out now and then, which brings others nearer."""
        kept = np.minimum(1, np.sqrt(1e-3 * self.counts.sum() / self.counts))
        found = []
        for paragraph in text:
            numbers = np.array([self.number[word] for word in paragraph if word in self.number], int)
            numbers = numbers[random.random(len(numbers)) < kept[numbers]]
            for apart in range(1, WINDOW + 1):
                found.append(np.stack([numbers[apart:], numbers[:-apart]], axis=1))
                found.append(found[-1][:, ::-1])
        pairs = np.concatenate(found)
        random.shuffle(pairs)
        return pairs


class Rows:
    """The rows of a table that a batch needs, each once, and their gradients."""

    def __init__(self, table, keys, numbers):
        self.table = table
        needed, self.places = np.unique(numbers, return_inverse=True)
        self.keys, self.places = keys[needed], self.places.reshape(numbers.shape)
        self.pulled = table.pull_rows(self.keys)

    def vectors(self):
        """Those of the numbers, in their shape."""
        return self.pulled.wait()[self.places]

    def push(self, gradients):
        """Contributes a gradient for each number, and returns at once."""
        width = gradients.shape[-1]
        sums = np.zeros((len(self.keys), width), np.float32)
        np.add.at(sums, self.places.ravel(), gradients.reshape(-1, width))
        return self.table.push_rows(self.keys, sums)


def step(tables, words, pairs, random):
    """Learns from a batch of pairs; returns its mean loss, for one pair and its negatives, and what is on its way."""
    negatives = np.searchsorted(words.drawn, random.random((len(pairs), NEGATIVES)))
    others = np.concatenate([pairs[:, 1:], negatives.clip(0, len(words.all) - 1)], axis=1)
    centre, near = Rows(tables[0], words.keys, pairs[:, 0]), Rows(tables[1], words.keys, others)
    mine, theirs = centre.vectors(), near.vectors()
    chances = 1 / (1 + np.exp(-np.einsum("bd,bnd->bn", mine, theirs)))
    is_near = np.zeros_like(chances)
    is_near[:, 0] = 1
    errors = chances - is_near
    pushes = [centre.push(np.einsum("bn,bnd->bd", errors, theirs)), near.push(errors[:, :, None] * mine[:, None, :])]
    losses = -np.log(np.clip(np.where(is_near > 0, chances, 1 - chances), 1e-7, 1)).sum(axis=1)
    return float(losses.mean()), pushes


def work(client, files, args):
    """Trains on this worker's share of the text; rank 0 returns the loss of each epoch and the vectors."""
    rule = gradwire.AdaGrad(args.learning_rate, average=False)
    tables = [
        client.table("words", args.width, optimizer=rule, initial=gradwire.Uniform(-0.5 / args.width, 0.5 / args.width)),
        client.table("contexts", args.width, optimizer=rule),
    ]
    text = text_of(files)
    words, random = Words(text, args.at_least), np.random.default_rng(client.rank)
    losses = []
    for epoch in range(args.epochs):
        pairs = words.pairs(text[client.rank :: client.workers], random)
        each = [step(tables, words, pairs[at : at + args.batch], random) for at in range(0, len(pairs), args.batch)]
        gradwire.wait_all(push for _, pushes in each for push in pushes)
        losses.append(float(np.mean([loss for loss, _ in each])))
        if client.rank == 0:
            print(f"epoch {epoch + 1} of {args.epochs}: {len(pairs)} pairs, loss {losses[-1]:.4f}", flush=True)
    client.barrier()
    return (losses, words.all, tables[0].pull_rows(words.keys).wait()) if client.rank == 0 else None


def neighbours(all_words, vectors, word):
    """The words nearest to one, by the angle between vectors."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = np.argsort(-unit @ unit[all_words.index(word)])
    return [all_words[at] for at in near if all_words[at] != word][:NEIGHBOURS]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="pages to read; the project's own without any")
    parser.add_argument("--like", nargs="*", default=["worker", "server", "round", "memory"], help="words to look at")
    parser.add_argument("--at-least", type=int, default=5, help="times that a word comes")
    parser.add_argument("--width", type=int, default=32, help="numbers of a vector")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--learning-rate", type=float, default=0.2)
    parser.add_argument("--transport", choices=["shm", "tcp", "verbs"])
    args = parser.parse_args()
    files = args.files or sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
    results = gradwire.launch(work, files, args, servers=args.servers, workers=args.workers, transport=args.transport)
    losses, all_words, vectors = results[0]
    near = {word: neighbours(all_words, vectors, word) for word in args.like if word in all_words}
    for word, others in near.items():
        print(f"{word}: {', '.join(others)}")
    told = {
        "words": len(all_words),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "neighbours": near,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
