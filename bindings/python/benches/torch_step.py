"""What an exchange of gradients adds to a step of training: Gradwire's optimizer and its hook beside torch's DistributedDataParallel over
gloo, in the same processes.

    gradwire launch -n 2 -s 1 --transport shm -- python bindings/python/benches/torch_step.py
    gradwire launch -n 2 -s 1 --transport shm -- python bindings/python/benches/torch_step.py --layers 784 4096 4096 10

The model is an MLP. The ways take turns: one block of steps each. A step without exchange is measured in the same turns. Rank 0 prints for
each way the milliseconds of a step, what it adds to the step without exchange (the median over turns), and that as a share of what gloo
adds, with its quartiles. Each way trains a model of its own, from the same numbers; different weights are an error.
"""

import argparse
import copy
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch as bps
from beside_gloo import joined


def mlp(layers):
    parts = [part for a, b in zip(layers, layers[1:]) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts[:-1])


class Way:
    """A model that is trained in one way."""

    def __init__(self, name, model, module, optimizer):
        self.name, self.model, self.module, self.optimizer = name, model, module, optimizer

    def steps(self, count, inputs, labels):
        """Seconds of a step."""
        dist.barrier()
        started = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.module(inputs), labels).backward()
            self.optimizer.step()
        return (time.perf_counter() - started) / count


def ways(client, layers):
    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    first = mlp(layers)
    models = [copy.deepcopy(first) for _ in range(4)]
    hooked = DistributedDataParallel(models[2])
    hooked.register_comm_hook(bps.DdpState(client), bps.ddp_hook)
    optimizer = bps.DistributedOptimizer(sgd(models[3]), named_parameters=models[3].named_parameters(), client=client)
    return [
        Way("no exchange", models[0], models[0], sgd(models[0])),
        Way("gloo", models[1], DistributedDataParallel(models[1]), sgd(models[1])),
        Way("hook", models[2], hooked, sgd(models[2])),
        Way("optimizer", models[3], models[3], optimizer),
    ]


def compared(client, args):
    torch.manual_seed(7)
    inputs, labels = torch.randn(args.batch, args.layers[0]), torch.randint(0, args.layers[-1], (args.batch,))
    alone, *exchanges = ways(client, args.layers)
    everyone = [alone, *exchanges]
    for way in everyone:
        way.steps(5, inputs, labels)
    count = torch.tensor([max(5, int(args.seconds / max(way.steps(5, inputs, labels) for way in everyone)))])
    dist.broadcast(count, 0)
    turns = [[way.steps(int(count), inputs, labels) * 1e3 for way in everyone] for _ in range(args.turns)]
    for way in exchanges:
        # Every worker has the same rows, so that the mean of all is each one's own gradient.
        for ours, theirs in zip(way.model.parameters(), alone.model.parameters()):
            assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5), way.name
    if client.rank == 0:
        print(f"{'':>12} {'step ms':>9} {'adds ms':>9} of gloo's")
    for at, way in enumerate(everyone):
        added = [turn[at] - turn[0] for turn in turns]
        shares = statistics.quantiles([(turn[at] - turn[0]) / (turn[1] - turn[0]) for turn in turns], n=4)
        if client.rank == 0:
            step = statistics.median(turn[at] for turn in turns)
            print(f"{way.name:>12} {step:>9.3f} {statistics.median(added):>9.3f} {shares[1]:.2f} ({shares[0]:.2f} to {shares[2]:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="*", default=[784, 512, 512, 10], help="sizes of the MLP's layers")
    parser.add_argument("--batch", type=int, default=64, help="rows of a step (default 64)")
    parser.add_argument("--turns", type=int, default=9, help="how often each way is measured (default 9)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of one block (default 0.5)")
    args = parser.parse_args()
    with joined() as client:
        compared(client, args)


if __name__ == "__main__":
    main()
