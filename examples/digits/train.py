"""Softmax regression on the handwritten digits, with numpy alone.

    python train.py                                    starts a cluster on this machine by itself
    gradwire launch -n 2 -s 1 -- python train.py       is one of the workers of a cluster

Each worker trains on its share of the images. The servers average the gradients and apply SGD with momentum.
"""

import os
import sys
from pathlib import Path

import numpy as np

import gradwire

EPOCHS = 20
BATCH = 64


def images():
    """Training images and labels, test images and labels. Every fifth row is for the test."""
    rows = np.loadtxt(Path(__file__).with_name("digits.csv"), delimiter=",", dtype=np.float32)
    inputs = np.hstack([rows[:, :-1] / 16, np.ones((len(rows), 1), np.float32)])
    labels = rows[:, -1].astype(int)
    is_test = np.arange(len(rows)) % 5 == 0
    return inputs[~is_test], labels[~is_test], inputs[is_test], labels[is_test]


def gradient(weights, inputs, labels):
    """The gradient of the cross-entropy."""
    scores = inputs @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    return (inputs.T @ chances / len(labels)).astype(np.float32)


def train(client):
    """Trains, and returns the accuracy on the test images."""
    inputs, labels, test_inputs, test_labels = images()
    tensor = client.declare("weights", (inputs.shape[1], 10), optimizer=gradwire.SGD(0.2, momentum=0.9))
    weights = np.zeros((inputs.shape[1], 10), np.float32)
    client.init(tensor, weights)
    order = np.arange(client.rank, len(labels), client.workers)
    # All workers make the same number of steps.
    steps = len(labels) // client.workers // BATCH
    random = np.random.default_rng(client.rank)
    for _ in range(EPOCHS):
        random.shuffle(order)
        for step in range(steps):
            batch = order[step * BATCH : (step + 1) * BATCH]
            weights = client.push_pull(tensor, gradient(weights, inputs[batch], labels[batch])).wait()
    accuracy = float(((test_inputs @ weights).argmax(axis=1) == test_labels).mean())
    print(f"rank {client.rank} of {client.workers}: accuracy {accuracy:.3f}", flush=True)
    return accuracy


if __name__ == "__main__":
    if "GRADWIRE_SCHEDULER__HOST" in os.environ or "DMLC_PS_ROOT_URI" in os.environ:
        with gradwire.connect() as client:
            train(client)
    else:
        accuracies = gradwire.launch(train, servers=1, workers=2)
        sys.exit(min(accuracies) < 0.9)
