"""Weights from one trainer to many readers, with versions.

    python publish.py --readers 3

One worker trains: it assigns all weights anew, version after version. The others only read, whenever they like, and hold up
nobody: in mode `async` a pull brings what is in force. Contributions travel by the placement `static`, into key buffers that
servers keep for their one writer.

A chunk is read as one version, but two chunks of one pull may be of different ones. A reader that wants all weights of one
version looks at the versions of chunks, and pulls again where they differ. What it takes is checked here against the elements
themselves: every element of version v is v.
"""

import argparse
import json
import statistics
import time

import numpy as np

import gradwire

# How long a reader may see nothing of a training that goes on.
WITHIN_S = 60.0


def declare(client, elements):
    """The weights, and how many versions of them were begun."""
    weights = client.declare("weights", elements, optimizer=gradwire.Assign(), mode="async")
    begun = client.declare("begun", (), "int64", optimizer=gradwire.Assign(), mode="async")
    client.init(weights, np.zeros(elements, np.float32))
    client.init(begun, np.int64(0))
    return weights.with_chunk_versions(), begun


def train(client, weights, begun, args):
    """Publishes versions 1, 2, 3, …"""
    mine = client.empty(args.elements)
    for version in range(1, args.versions + 1):
        # Stands for the training between two versions.
        time.sleep(args.every_ms / 1e3)
        client.push(begun, np.int64(version)).wait()
        mine[:] = version
        client.push(weights, mine).wait()
        if version % max(1, args.versions // 5) == 0:
            print(f"trainer: version {version} of {args.versions} is published, by {weights.placement}", flush=True)
    return {"placement": weights.placement, "chunks_placed": client.stats()["placed"]}


def read(client, weights, begun, args):
    """Pulls until the last version is there; returns what it saw."""
    mine, newest = client.empty(args.elements), client.empty((), "int64")
    lags, mixed, torn, last = [], 0, 0, 0
    deadline = time.monotonic() + WITHIN_S
    while last < args.versions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {client.rank} has waited {WITHIN_S:.0f} s for a version after {last}")
        handle = client.pull(weights, out=mine)
        handle.wait()
        torn += torn_chunks(mine, handle.chunk_versions)
        if len(set(handle.chunk_versions)) > 1:
            mixed += 1
            continue
        version = handle.version
        torn += not (mine == version).all()
        if version < last:
            raise AssertionError(f"version {version} came after {last}")
        if version > last:
            lags.append(int(client.pull(begun, out=newest).wait()) - version)
            last, deadline = version, time.monotonic() + WITHIN_S
        # A reader has other things to do, too.
        time.sleep(args.every_ms / 2e3)
    print(
        f"reader {client.rank}: {len(lags)} versions, {mixed} pulls repeated, behind by {statistics.median(lags):.0f} "
        f"versions, {max(lags)} at most",
        flush=True,
    )
    return {"seen": len(lags), "mixed": mixed, "torn": torn, "lags": lags}


def torn_chunks(mine, versions):
    """How many chunks are not of their version in every element; chunks may differ."""
    parts = zip(np.array_split(mine, len(versions)), versions)
    return sum(not (part == version).all() for part, version in parts)


def work(client, args):
    weights, begun = declare(client, args.elements)
    return (read if client.rank else train)(client, weights, begun, args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--versions", type=int, default=100, help="that are published")
    parser.add_argument("--every-ms", type=float, default=20, help="between two of them")
    # Whole chunks of 256 KiB, so that they are told apart by dividing evenly.
    parser.add_argument("--chunks", type=int, default=8, help="of 65,536 elements each, that the weights have")
    parser.add_argument("--transport", choices=["shm", "tcp", "verbs"])
    args = parser.parse_args()
    args.elements = args.chunks * 65_536
    trainer, *readers = gradwire.launch(
        work,
        args,
        servers=args.servers,
        workers=1 + args.readers,
        transport=args.transport,
        transport__placement="static",
    )
    lags = [lag for reader in readers for lag in reader["lags"]]
    told = {
        "readers": args.readers,
        "versions": args.versions,
        **trainer,
        "seen": [reader["seen"] for reader in readers],
        "pulls_repeated": sum(reader["mixed"] for reader in readers),
        "torn": sum(reader["torn"] for reader in readers),
        "lag_median": statistics.median(lags),
        "lag_max": max(lags),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
