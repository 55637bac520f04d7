"""Gradwire's store beside MXNet's own `dist_sync`, by turns: 1 server, 2 workers, all on this machine.

    python benches/mxnet_store.py [--rounds N] [--epochs N]

Needs MXNet and the wheel in this Python, and GRADWIRE_PROGRAMS (programs of a release build). A round runs, one after the
other: `examples/mxnet_mlp.py` as it is, under `python -m gradwire.run`, over MXNet's own store, and without a store (two
processes side by side); then pushes and pulls that are waited for, over both stores. It prints medians over the rounds with
the least and the most; factors are of what ran in the same round. What a store adds to an iteration without one is its
share. Five rounds take about three minutes on a quiet machine.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "mxnet_mlp.py"
SIZES = {"400 KB": 100_000, "64 MB": 16_777_216}
WITHIN_S = 300.0


def push_and_pull(kv, key, gradient, out):
    kv.push(key, gradient)
    kv.pull(key, out=out)


def push_pull(kv, key, gradient, out):
    kv.pushpull(key, gradient, out=out)


WAYS = {"push, pull": push_and_pull, "pushpull": push_pull}


def moves(kv, mx):
    """Milliseconds of a push and a pull that is waited for."""
    told = {}
    for size, elements in SIZES.items():
        gradient, out = mx.nd.ones((elements,)), mx.nd.zeros((elements,))
        for key, (way, move) in enumerate(WAYS.items(), elements):
            kv.init(key, mx.nd.zeros((elements,)))
            times = []
            for _ in range(10 if elements > 1_000_000 else 400):
                started = time.perf_counter()
                move(kv, key, gradient, out)
                out.wait_to_read()
                times.append(time.perf_counter() - started)
            # MXNet's own pull overwrites the gradient that was pushed.
            assert "gradwire" not in type(kv).__module__ or out[0].asscalar() == kv.num_workers
            told[f"{size} {way}"] = 1e3 * statistics.median(times[len(times) // 5 :])
    return told


def worker():
    import mxnet as mx

    kv = mx.kv.create("dist_sync")
    print(json.dumps(moves(kv, mx)), flush=True)
    kv._barrier()


def finish(workers):
    """What workers printed last, each number the mean of theirs."""
    said = [process.communicate(timeout=WITHIN_S)[0] for process in workers]
    assert all(process.returncode == 0 for process in workers), said
    told = [json.loads(out.splitlines()[-1]) for out in said]
    return {name: statistics.mean(one[name] for one in told) for name in told[0] if not isinstance(told[0][name], str)}


def start(words, environ):
    return subprocess.Popen([sys.executable, *map(str, words)], env=environ, stdout=subprocess.PIPE, text=True)


def over_gradwire(words):
    import gradwire

    with gradwire.launch(servers=1, workers=2) as cluster:
        return finish([start(["-m", "gradwire.run", *words], cluster.environ(rank)) for rank in range(2)])


def over_mxnet(words):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    others = [
        subprocess.Popen(
            [sys.executable, "-c", "import mxnet"], env={**environ, "DMLC_ROLE": role}, stderr=subprocess.DEVNULL
        )
        for role in ("scheduler", "server")
    ]
    try:
        return finish([start(words, {**environ, "DMLC_ROLE": "worker"}) for _ in range(2)])
    finally:
        for process in others:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def alone(words):
    return finish([start([*words, "--kvstore", "none"], dict(os.environ)) for _ in range(2)])


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def report_example(runs):
    of = lambda which, name: [one[name] for one in runs[which]]
    ours, theirs, none = (of(which, "ms_per_iteration") for which in ("gradwire", "mxnet", "none"))
    print("MLP 784-2048-2048-10, batch 64, the same script, ms an iteration:")
    for name, values in (("without a store", none), ("gradwire", ours), ("dist_sync", theirs)):
        print(f"  {name:16} {spread(values, '.1f')}")
    shares = [[a - b for a, b in zip(values, none)] for values in (ours, theirs)]
    print(f"  share of the store: gradwire {spread(shares[0], '.1f')}, dist_sync {spread(shares[1], '.1f')}")
    print(f"  gradwire's share, by dist_sync's: {spread([a / b for a, b in zip(*shares)], '.2f')}")
    print(f"  accuracy: gradwire {spread(of('gradwire', 'accuracy'), '.4f')}, dist_sync {spread(of('mxnet', 'accuracy'), '.4f')}")


def report_moves(runs):
    print("push and pull, waited for, ms:")
    for name in runs["gradwire"][0]:
        ours, theirs = ([one[name] for one in runs[which]] for which in ("gradwire", "mxnet"))
        factors = [b / a for a, b in zip(ours, theirs)]
        print(f"  {name:18} gradwire {spread(ours, '.2f')}, dist_sync {spread(theirs, '.2f')}: {spread(factors, '.1f')} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--moves", action="store_true", help="pushes and pulls only")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker()
    stores = {"gradwire": over_gradwire, "mxnet": over_mxnet}
    examples, moved = {"gradwire": [], "mxnet": [], "none": []}, {"gradwire": [], "mxnet": []}
    script = [EXAMPLE, "--epochs", args.epochs]
    for turn in range(args.rounds):
        if not args.moves:
            for name, run in (*stores.items(), ("none", alone)):
                examples[name].append(run(script))
        for name, run in stores.items():
            moved[name].append(run([__file__, "--worker"]))
        print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
    if not args.moves:
        report_example(examples)
    report_moves(moved)


if __name__ == "__main__":
    main()
