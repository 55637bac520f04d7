"""push_pull of torch tensors, in place, beside gloo's all-reduce of the same tensors in the same processes.

    gradwire launch -n 2 -s 1 --transport shm -- python bindings/python/benches/torch_gloo.py
    gradwire launch -n 2 -s 1 --transport tcp -- python bindings/python/benches/torch_gloo.py --bytes 4194304

For each size the two take turns: one block of operations each, then a block of the other's. Printed by rank 0 for each size:
milliseconds of one operation (the median over blocks), and `ratio`, the median over the pairs of blocks of gloo's time divided
by Gradwire's, with its quartiles. Both average; the results are checked. `benches/links.sh` runs it between two hosts with a slow link;
with `--interface` it also prints what rank 0's host sends, as a share of the tensor's bytes: a ring of two sends 1.
"""

import argparse
import pathlib
import statistics
import time

import torch
import torch.distributed as dist

import gradwire.torch as bps
from beside_gloo import joined

SIZES = [16, 1024, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def seconds_of(operation, count):
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        operation()
    return (time.perf_counter() - started) / count


def bytes_sent(interface):
    return int(pathlib.Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def sent_by(operation, count, args):
    """The bytes that this host sends for one operation."""
    dist.barrier()
    before = bytes_sent(args.interface)
    seconds_of(operation, count)
    dist.barrier()
    return (bytes_sent(args.interface) - before) / count


def compared(client, size, args):
    tensor = torch.empty(size // 4)
    mean = (client.workers + 1) / 2

    def ours():
        return bps.push_pull_inplace(tensor, average=True, name=f"bench.{size}", client=client)

    def gloo():
        dist.all_reduce(tensor)
        return tensor.div_(client.workers)

    for operation in (ours, gloo):
        tensor.fill_(client.rank + 1)
        assert bool((operation() == mean).all()), tensor
    # A block takes about so many seconds.
    count = torch.tensor([max(1, int(args.seconds / max(seconds_of(gloo, 3), 1e-5)))])
    dist.broadcast(count, 0)
    seconds_of(ours, int(count))
    pairs = [(seconds_of(ours, int(count)), seconds_of(gloo, int(count))) for _ in range(args.pairs)]
    if client.rank == 0:
        ratios = statistics.quantiles([theirs / own for own, theirs in pairs], n=4)
        own, theirs = (statistics.median(seconds) * 1e3 for seconds in zip(*pairs))
        low, middle, high = ratios
        print(f"{size:>10} {own:>12.3f} {theirs:>10.3f} {middle:>7.2f} ({low:.2f} to {high:.2f})", flush=True)
    if args.interface:
        shares = [sent_by(operation, int(count), args) / size for operation in (ours, gloo)]
        if client.rank == 0:
            print("     sent: {:.3f} and {:.3f} of the tensor".format(*shares), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, nargs="*", default=SIZES, help="of the float32 tensors")
    parser.add_argument("--pairs", type=int, default=9, help="how often both are measured (default 9)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of one block (default 0.3)")
    parser.add_argument("--interface", help="whose sent bytes are printed")
    args = parser.parse_args()
    with joined() as client:
        if client.rank == 0:
            print(f"{'bytes':>10} {'Gradwire ms':>12} {'gloo ms':>10} {'ratio':>7}")
        for size in args.bytes:
            compared(client, size, args)


if __name__ == "__main__":
    main()
