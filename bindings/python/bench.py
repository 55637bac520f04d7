"""numpy through Python beside the Rust client: push_pull of one tensor, one worker and one server each, the two turn by
turn in one run. Then what a step of torch costs more by averaging over two workers, where torch is installed.

    python bench.py --programs target/release [--mib 64] [--pairs 20] [--rounds 5] [--transport shm]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gradwire


class Rust:
    """The Rust client, which does rounds when it is told to."""

    def __init__(self, cluster: gradwire.Cluster, programs: Path, elements: int) -> None:
        self.process = subprocess.Popen(
            [str(programs / "examples" / "push_pull_speed"), str(elements)],
            env={**cluster.environ(0)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, rounds: int) -> list[float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        return [float(line) for line in iter(self.process.stdout.readline, "\n")]

    def close(self) -> None:
        """Lets it leave."""
        self.process.communicate()


def rounds_of(begin: Callable[[], Any]) -> Callable[[int], list[float]]:
    """Times rounds in this process."""

    def run(rounds: int) -> list[float]:
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            begin().wait()
            seconds.append(time.perf_counter() - began)
        return seconds

    return run


def told(name: str, seconds: list[float], mib: float) -> None:
    quarters = statistics.quantiles(seconds, n=4)
    speed = 2 * mib / 1024 / statistics.median(seconds)
    print(f"{name:42} {1e3 * quarters[1]:8.3f} ms ({1e3 * quarters[0]:.3f} to {1e3 * quarters[2]:.3f})  {speed:6.2f} GiB/s both ways")


def compare(programs: Path, mib: float, pairs: int, rounds: int, transport: str) -> None:
    """Each turn both, in changing order; the ratio is the median of the turns'."""
    elements = int(mib * 2**18)
    words = {"programs": programs, "transport": transport}
    with gradwire.launch(**words) as here, gradwire.launch(**words) as there, here.connect() as client:
        rust = Rust(there, programs, elements)
        tensor = client.declare(1, elements, optimizer=gradwire.Assign())
        library, landed, own, out = client.empty(elements), client.empty(elements), np.ones(elements, "f4"), np.zeros(elements, "f4")
        library[:] = 1
        landed[:] = 0
        ways = {
            "Rust, registered memory": rust,
            "Python, arrays of client.empty()": rounds_of(lambda: client.push_pull(tensor, library, out=landed)),
            "Python, one such array both ways": rounds_of(lambda: client.push_pull(tensor, library, out=library)),
            "Python, plain numpy both ways": rounds_of(lambda: client.push_pull(tensor, own, out=out)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        medians: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(pairs + 2):
            order = list(ways.items())
            for name, way in order if turn % 2 else reversed(order):
                took = way(rounds)
                if turn >= 2:  # Both are warm.
                    seconds[name] += took
                    medians[name].append(statistics.median(took))
        rust.close()
    print(f"{mib:g} MiB over {transport}, {pairs} turns of {rounds} rounds each")
    for name, took in seconds.items():
        told(name, took, mib)
    base = medians["Rust, registered memory"]
    for name, took in list(medians.items())[1:]:
        ratios = [rust / mine for rust, mine in zip(base, took)]
        print(f"{name:42} {statistics.median(ratios):.3f} x Rust's speed ({min(ratios):.3f} to {max(ratios):.3f})")


def torch_worker(client: gradwire.Client, steps: int, store: str) -> dict[str, list[float]]:
    """For `Cluster.run`: the steps of a model alone, under DDP with gloo, under the hook, under the wrapper."""
    import torch
    from torch import nn

    import gradwire.torch as gt

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=client.rank, world_size=client.workers)

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))

    def sgd(net: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(net.parameters(), 0.01)

    def hooked() -> nn.Module:
        net = nn.parallel.DistributedDataParallel(model())
        net.register_comm_hook(gt.DdpState(client), gt.ddp_hook)
        return net

    alone, gloo, hook, wrapped = model(), nn.parallel.DistributedDataParallel(model()), hooked(), model()
    wrapper: Any = gt.DistributedOptimizer(sgd(wrapped), wrapped.named_parameters(), client=client)
    ways = {
        "alone, both at once": (alone, sgd(alone)),
        "DDP over gloo": (gloo, sgd(gloo)),
        "DDP with gradwire's hook": (hook, sgd(hook)),
        "DistributedOptimizer": (wrapped, wrapper),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    data, labels = torch.randn(64, 784), torch.randint(0, 10, (64,))
    for turn in range(steps):
        for name, (net, optimizer) in ways.items():
            client.barrier(f"{name} {turn}")
            began = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(data), labels).backward()
            optimizer.step()
            if turn >= 3:
                seconds[name].append(time.perf_counter() - began)
    # The group stays to the end of the process (torch 1.13 may wait for ever where DDP destroys one).
    return seconds


def main() -> None:
    """As its words say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--mib", type=float, default=64)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--torch-steps", type=int, default=33)
    args = parser.parse_args()
    compare(args.programs.resolve(), args.mib, args.pairs, args.rounds, args.transport)
    if args.torch_steps and importlib.util.find_spec("torch"):
        with gradwire.launch(workers=2, programs=args.programs.resolve(), transport=args.transport) as cluster:
            seconds = cluster.run(torch_worker, args.torch_steps, str(cluster.directory / "store"))[0]
        print("a step of the MLP 784-2048-2048-10, batch 64, two workers of a thread each, 23.3 MB of gradient")
        for name, took in seconds.items():
            quarters = statistics.quantiles(took, n=4)
            print(f"{name:42} {1e3 * quarters[1]:8.1f} ms ({1e3 * quarters[0]:.1f} to {1e3 * quarters[2]:.1f})")
        base = seconds["alone, both at once"]
        print("what averaging costs a step, as the median of each turn's difference")
        for name, took in list(seconds.items())[1:]:
            quarters = statistics.quantiles([mine - alone for mine, alone in zip(took, base)], n=4)
            print(f"{name:42} {1e3 * quarters[1]:8.1f} ms ({1e3 * quarters[0]:.1f} to {1e3 * quarters[2]:.1f})")


if __name__ == "__main__":
    main()
