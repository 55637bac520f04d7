"""How long a job takes to begin from a checkpoint: many small tensors, or one large one, from a directory or an object store.

    python bindings/python/benches/restore.py --place DIRECTORY_OR_URL --tensors 100000 --elements 1000

A first job declares the tensors, gives each one round and writes a checkpoint. A second job declares them again with
`checkpoint.restore = latest`. Printed: seconds of that declaration beside those of the same one in a job without a
checkpoint, and MB/s of one server: bytes / (seconds with - seconds without) / servers.
"""

import argparse
import json
import time

import numpy as np

import gradwire

LIMITS = {"deadlines__operation_ms": 3_600_000}


def declarations(args):
    return [gradwire.Declaration(f"t{at}", args.elements) for at in range(args.tensors)]


def declared(args, then=None, **settings):
    """Seconds until every tensor is declared, which is when it has its values."""
    with gradwire.launch(servers=args.servers, workers=1, **LIMITS, **settings) as cluster, cluster.connect() as client:
        started = time.monotonic()
        tensors = client.declare_all(declarations(args))
        seconds = time.monotonic() - started
        if then:
            then(client, tensors)
        return seconds


def write(args):
    def push(client, tensors):
        ones = np.full(args.elements, 1, np.float32)
        for first in range(0, len(tensors), 512):
            gradwire.wait_all([client.push(tensor, ones) for tensor in tensors[first : first + 512]])
        client.checkpoint(tensors, timeout=3600)

    return push


def check(args):
    def pull(client, tensors):
        for tensor in (tensors[0], tensors[-1]):
            values = client.pull(tensor).wait()
            assert (values == 1).all(), f"{tensor} was not restored"

    return pull


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", required=True, help="checkpoint.directory: a directory, or s3://…")
    parser.add_argument("--tensors", type=int, default=100_000, help="how many (default 100000)")
    parser.add_argument("--elements", type=int, default=1_000, help="of each, float32 (default 1000)")
    parser.add_argument("--servers", type=int, default=1)
    args = parser.parse_args()
    place = {"checkpoint__directory": args.place, "job": 1}
    empty = declared(args)
    declared(args, write(args), **place)
    restored = declared(args, check(args), checkpoint__restore="latest", **place)
    bytes_each = 4 * args.elements * args.tensors / args.servers
    rate = bytes_each / max(restored - empty, 1e-3) / 1e6
    print(json.dumps({"declare_s": round(empty, 2), "restore_s": round(restored, 2), "server_mb_s": round(rate, 1)}))


if __name__ == "__main__":
    main()
