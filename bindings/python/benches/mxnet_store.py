"""Gradwire's store beside MXNet's own `dist_sync`, by turns: 1 server, 2 workers, all on this machine.

    python benches/mxnet_store.py [--pairs N]

Needs MXNet and the wheel in this Python, and GRADWIRE_PROGRAMS (programs of a release build). Prints, for each store, the
median over the runs of: milliseconds of a push and a pull that is waited for, at 400 KB and 64 MB; milliseconds of an
iteration of the paper's MLP (784-2048-2048-10, batch 64); and the same without a store, two processes side by side. What
the store adds to that is its share of an iteration.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = {"400 KB": 100_000, "64 MB": 16_777_216}
LAYERS = (784, 2048, 2048, 10)
BATCH, WITHIN_S = 64, 300.0


def push_pull_ms(kv, mx, elements):
    key = elements
    gradient, out = mx.nd.ones((elements,)), mx.nd.zeros((elements,))
    kv.init(key, mx.nd.zeros((elements,)))
    times = []
    for _ in range(10 if elements > 1_000_000 else 300):
        started = time.perf_counter()
        kv.push(key, gradient)
        kv.pull(key, out=out)
        out.wait_to_read()
        times.append(time.perf_counter() - started)
    # MXNet's own pull overwrites the gradient that was pushed.
    assert "gradwire" not in kv.type or out[0].asscalar() == kv.num_workers
    return 1e3 * statistics.median(times[len(times) // 5 :])


def iteration_ms(kv, mx):
    net = mx.gluon.nn.HybridSequential()
    for inputs, outputs in zip(LAYERS, LAYERS[1:]):
        last = outputs == LAYERS[-1]
        net.add(mx.gluon.nn.Dense(outputs, in_units=inputs, activation=None if last else "relu"))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=kv)
    x, y = mx.nd.random.uniform(shape=(BATCH, LAYERS[0])), mx.nd.zeros((BATCH,))
    times = []
    for _ in range(60):
        started = time.perf_counter()
        with mx.autograd.record():
            value = loss(net(x), y)
        value.backward()
        trainer.step(BATCH)
        value.wait_to_read()
        times.append(time.perf_counter() - started)
    mx.nd.waitall()
    return 1e3 * statistics.mean(times[10:])


def worker(which):
    import mxnet as mx

    if which == "gradwire":
        import gradwire.mxnet
    kv = None if which == "none" else mx.kv.create("gradwire" if which == "gradwire" else "dist_sync")
    told = {}
    if kv is not None:
        # Before there is an optimizer, which would be theirs, too.
        told.update({name: push_pull_ms(kv, mx, elements) for name, elements in SIZES.items()})
    told["MLP"] = iteration_ms(kv, mx)
    print("TOLD", json.dumps(told), flush=True)
    if kv is not None:
        kv._barrier()


def start(which, environ):
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", which], env=environ, stdout=subprocess.PIPE, text=True
    )


def finish(workers):
    said = [process.communicate(timeout=WITHIN_S)[0] for process in workers]
    told = [json.loads(line[5:]) for out in said for line in out.splitlines() if line.startswith("TOLD ")]
    assert len(told) == len(workers), said
    return {name: statistics.mean(one[name] for one in told) for name in told[0]}


def of_gradwire():
    import gradwire

    with gradwire.launch(servers=1, workers=2) as cluster:
        return finish([start("gradwire", cluster.environ(rank)) for rank in range(2)])


def of_none():
    return finish([start("none", dict(os.environ)) for _ in range(2)])


def of_mxnet():
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
        return finish([start("mxnet", {**environ, "DMLC_ROLE": "worker"}) for _ in range(2)])
    finally:
        for process in others:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker)
    runs = {"gradwire": [], "mxnet": [], "none": []}
    for _ in range(args.pairs):
        for name, run in (("gradwire", of_gradwire), ("mxnet", of_mxnet), ("none", of_none)):
            runs[name].append(run())
    median = lambda which, name: statistics.median(run[name] for run in runs[which])
    spread = lambda which, name: [round(run[name], 2) for run in runs[which]]
    alone = median("none", "MLP")
    print(f"MLP without a store: {alone:.1f} ms an iteration {spread('none', 'MLP')}")
    for name in ("MLP", *SIZES):
        ours, theirs = median("gradwire", name), median("mxnet", name)
        line = f"{name}: gradwire {ours:.2f} ms, dist_sync {theirs:.2f} ms, {theirs / ours:.1f} times"
        if name == "MLP":
            line += f"; the store's share {ours - alone:.1f} against {theirs - alone:.1f} ms"
        print(line, spread("gradwire", name), spread("mxnet", name))


if __name__ == "__main__":
    main()
