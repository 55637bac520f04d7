"""Gradwire beside TensorFlow's own parameter server, by turns: 1 server, 2 workers, all on this machine.

    python benches/tensorflow_servers.py [--rounds N] [--models lstm,vgg16,…] [--training] [--json FILE]

Needs TensorFlow and the wheel in this Python, and GRADWIRE_PROGRAMS (programs of a release build). It compares

- tensors: each worker adds to all tensors of a model and reads the sums. TensorFlow: `assign_add` and a read of variables on the server's
  job, scheduled by `ClusterCoordinator`, over gRPC. Gradwire: `push_pull` inside a `tf.function`, where each step waits for both workers.
  As in Xue et al., "Fast Distributed Deep Learning over RDMA", section 5.1, a light reduction consumes each tensor. `copied` copies each
  result once more, as where results cannot stay where they landed (the paper's ablation, figure 12). GB/s are those of both directions
  and both workers.
- training: a custom loop of a network for digits, asynchronously: `ClusterCoordinator` with gradients applied to variables on the server's
  job, and `ParameterServerOptimizer(mode="async")`, whose network is one of Keras. The share of the exchange is what a step takes beyond one
  of two processes that exchange nothing. A step is the mean of all steps of a run.

It prints medians over the rounds with the least and the most; ratios are of what ran in the same round.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

WITHIN_S = 600.0
WORKERS = 2
BATCH, HIDDEN = 64, 1024


def of_layers(*layers):
    """Elements of matrices and of their biases."""
    return [elements for taken, given in layers for elements in (taken * given, given)]


def vgg16():
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = [(9 * taken, given) for taken, given in zip(channels, channels[1:])]
    return of_layers(*convolutions, (7 * 7 * 512, 4096), (4096, 4096), (4096, 10))


def recurrent(gates):
    return [1024 * 1024, 1024 * 1024, 1024] * gates + of_layers((1024, 1000))


def alexnet():
    """In one column, unpadded, as TensorFlow's model library has it."""
    return of_layers((363, 64), (1600, 192), (1728, 384), (3456, 384), (3456, 256), (6400, 4096), (4096, 4096), (4096, 10))


def fcn5():
    return of_layers((784, 4096), (4096, 4096), (4096, 4096), (4096, 4096), (4096, 10))


def inception():
    """That of Keras, without the auxiliary classifier."""
    import keras
    import numpy as np

    model = keras.applications.InceptionV3(weights=None, classes=10)
    return [int(np.prod(one.shape)) for one in model.trainable_variables]


# The models of the paper's table 2, and steps of a run.
MODELS = {
    "alexnet": (alexnet, 8),
    "inception": (inception, 10),
    "vgg16": (vgg16, 4),
    "lstm": (lambda: recurrent(4), 20),
    "gru": (lambda: recurrent(3), 20),
    "fcn5": (fcn5, 8),
}


def median_step(step, steps):
    """The median time of a step, after two that are not counted."""
    times = []
    for turn in range(steps + 2):
        begun = time.perf_counter()
        step(float(turn))
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])


def gradwire_tensors(client, elements, steps, is_copied):
    import tensorflow as tf

    import gradwire.tensorflow as gw

    names = [str(at) for at in range(len(elements))]

    @tf.function
    def step(value):
        sums = gw.push_pull_all([tf.fill([one], value) for one in elements], names, average=False, client=client)
        if is_copied:
            sums = [tf.raw_ops.DeepCopy(x=one) for one in sums]
        return tf.add_n([tf.reduce_max(one) for one in sums])

    assert abs(float(step(tf.constant(1.0))) - WORKERS * len(elements)) < 1e-3
    time_of_step = median_step(lambda value: step(tf.constant(value)).numpy(), steps)
    table = gw.report(client)
    statics, done = sum(one.is_static for one in table), max(one.operations for one in table)
    copies = [sum(one.copies_in for one in table) / done, sum(one.copies_out for one in table) / done]
    return time_of_step, f"{statics} of {len(table)} tensors static; copies in a step: {copies[0]:g} of inputs, {copies[1]:g} of results"


def network():
    import keras

    keras.utils.set_random_seed(7)
    layers = keras.layers
    return keras.Sequential([layers.Input((784,)), layers.Dense(HIDDEN, "relu"), layers.Dense(HIDDEN, "relu"), layers.Dense(10)])


def a_batch():
    import tensorflow as tf

    return tf.random.stateless_uniform([BATCH, 784], (1, 2)), tf.random.stateless_uniform([BATCH], (3, 4), 0, 10, tf.int32)


def loss_of(logits, labels):
    import tensorflow as tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def keras_step(optimizer, model):
    """A step of a custom loop."""
    import tensorflow as tf

    data, labels = a_batch()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(model(data), labels)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    optimizer.build(model.trainable_variables)
    return step


def gradwire_training(client, steps):
    import keras

    import gradwire.tensorflow as gw

    return mean_step(keras_step(gw.ParameterServerOptimizer(keras.optimizers.SGD(0.01), mode="async", client=client), network()), steps), ""


def alone(steps):
    import keras

    return mean_step(keras_step(keras.optimizers.SGD(0.01), network()), steps)


def mean_step(step, steps):
    """The mean time of a step, after ten that are not counted."""
    for _ in range(10):
        step().numpy()
    begun = time.perf_counter()
    for _ in range(steps):
        step().numpy()
    return (time.perf_counter() - begun) / steps


def server(job, index, spec):
    """A process of TensorFlow's cluster."""
    import tensorflow as tf

    tf.distribute.Server(tf.train.ClusterSpec(json.loads(spec)), job_name=job, task_index=int(index), protocol="grpc").join()


def coordinator(spec, what, *words):
    """The process that schedules steps on TensorFlow's workers. Prints the median time of a step."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(json.loads(spec)), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    scheduled = tf.distribute.coordinator.ClusterCoordinator(strategy)
    if what == "tensors":
        elements, steps = json.loads(words[0]), int(words[1])
        with strategy.scope():
            variables = [tf.Variable(tf.zeros([one])) for one in elements]

        @tf.function
        def step(value):
            for variable, one in zip(variables, elements):
                variable.assign_add(tf.fill([one], value))
            return tf.add_n([tf.reduce_max(variable.read_value()) for variable in variables])

        def both(value):
            results = [scheduled.schedule(step, args=(tf.constant(value),)) for _ in range(WORKERS)]
            scheduled.join()
            return [one.fetch() for one in results]

        print(json.dumps(median_step(both, steps)))
        return
    steps, (data, labels) = int(words[0]), a_batch()
    with strategy.scope():
        shapes = [(784, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 10), (10,)]
        variables = [tf.Variable(tf.random.stateless_normal(shape, (5, 6), stddev=0.03)) for shape in shapes]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            first, first_bias, second, second_bias, third, third_bias = variables
            hidden = tf.nn.relu(data @ first + first_bias)
            hidden = tf.nn.relu(hidden @ second + second_bias)
            loss = loss_of(hidden @ third + third_bias, labels)
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.01 * gradient)
        return loss

    def many(count):
        for _ in range(count * WORKERS):
            scheduled.schedule(step)
        scheduled.join()

    many(10)
    begun = time.perf_counter()
    many(steps)
    print(json.dumps((time.perf_counter() - begun) / steps))


@contextlib.contextmanager
def cluster():
    """TensorFlow's own processes. Returns their addresses."""
    with contextlib.ExitStack() as ends:
        ports = [ends.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(WORKERS + 1)]
        hosts = [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]
    spec = json.dumps({"ps": hosts[:1], "worker": hosts[1:]})
    tasks = [("ps", "0")] + [("worker", str(at)) for at in range(WORKERS)]
    processes = []
    try:
        for task in tasks:
            processes.append(subprocess.Popen([sys.executable, __file__, "server", *task, spec], stderr=subprocess.DEVNULL))
        yield spec
    finally:
        for process in processes:
            process.kill()
            process.wait()


def own(*words):
    """The time of a step with TensorFlow's own parameter server."""
    with cluster() as spec:
        command = [sys.executable, __file__, "coordinator", spec, *map(str, words)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise SystemExit(f"TensorFlow's own parameter server failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def ours(transport, work, *words):
    """The time of a step with Gradwire."""
    import gradwire

    # Each worker keeps two rooms for each tensor.
    with gradwire.launch(servers=1, workers=WORKERS, transport=transport, memory__pool_bytes=3 << 30) as launched:
        return max(launched.run(work, *words, timeout_s=WITHIN_S))


def own_tensors(elements, steps):
    return own("tensors", json.dumps(elements), steps), ""


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def measured(rounds, ways):
    """Times by way, in turns."""
    times = {name: [] for name in ways}
    for turn in range(rounds):
        for name, way in ways.items():
            seconds, remark = way()
            times[name].append(seconds)
            print(f"round {turn + 1} of {rounds}: {name} {seconds * 1e3:.2f} ms {remark}", file=sys.stderr)
    return times


def compare_tensors(rounds, model):
    make, steps = MODELS[model]
    elements = make()
    moved = 4 * sum(elements) * 2 * WORKERS
    ways = {"TensorFlow over gRPC": lambda: own_tensors(elements, steps)}
    for transport in ("shm", "tcp"):
        for is_copied in (False, True):
            name = f"Gradwire over {transport}" + (", copied" if is_copied else "")
            ways[name] = lambda transport=transport, is_copied=is_copied: ours(transport, gradwire_tensors, elements, steps, is_copied)
    times = measured(rounds, ways)
    theirs = times["TensorFlow over gRPC"]
    print(f"\n{model}: {len(elements)} tensors, {4 * sum(elements) / 2**20:.2f} MiB; median (least to most) of {rounds} rounds")
    for name, mine in times.items():
        rates = [moved / one / 1e9 for one in mine]
        factors = [other / one for other, one in zip(theirs, mine)]
        print(f"  {name:28} step {spread([one * 1e3 for one in mine])} ms, {spread(rates)} GB/s, factor {spread(factors)}")
        yield {"what": model, "way": name, "ms": [one * 1e3 for one in mine], "gb_per_s": rates, "factor": factors}


def compare_training(rounds, steps):
    ways = {
        "no exchange": lambda: (two_alone(steps), ""),
        "TensorFlow over gRPC": lambda: (own("training", steps), ""),
        "Gradwire over shm": lambda: ours("shm", gradwire_training, steps),
        "Gradwire over tcp": lambda: ours("tcp", gradwire_training, steps),
    }
    times = measured(rounds, ways)
    single, theirs = times["no exchange"], times["TensorFlow over gRPC"]
    print(f"\ntraining, asynchronous, {HIDDEN} hidden: median (least to most) of {rounds} rounds")
    for name, mine in times.items():
        shares = [max(0.0, 1 - base / one) for base, one in zip(single, mine)]
        factors = [other / one for other, one in zip(theirs, mine)]
        print(f"  {name:28} step {spread([one * 1e3 for one in mine])} ms, exchange {spread(shares)} of it, factor {spread(factors)}")
        yield {"what": "training", "way": name, "ms": [one * 1e3 for one in mine], "exchange": shares, "factor": factors}


def two_alone(steps):
    """Two processes at the same time that exchange nothing."""
    command = [sys.executable, __file__, "alone", str(steps)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for _ in range(WORKERS)]
    try:
        return max(json.loads(process.communicate(timeout=WITHIN_S)[0].splitlines()[-1]) for process in processes)
    finally:
        for process in processes:
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each way runs")
    parser.add_argument("--models", default="lstm,vgg16", help=f"models whose tensors are exchanged, of {','.join(MODELS)}; may be empty")
    parser.add_argument("--training", action="store_true", help="compare a training, too")
    parser.add_argument("--json", help="a file for all values")
    args = parser.parse_args()
    rows = []
    for model in filter(None, args.models.split(",")):
        rows.extend(compare_tensors(args.rounds, model))
    if args.training:
        rows.extend(compare_training(args.rounds, 100))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    roles = {"server": server, "coordinator": coordinator, "alone": lambda steps: print(json.dumps(alone(int(steps))))}
    role = roles.get(sys.argv[1]) if len(sys.argv) > 1 else None
    role(*sys.argv[2:]) if role else main()
