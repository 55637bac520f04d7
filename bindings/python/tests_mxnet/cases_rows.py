"""Gradients that are rows: what becomes of them, and of the rows that nobody pushed, is what MXNet's own makes of them."""

import os
import tempfile

import mxnet as mx
import numpy as np
from cases_optimizers import IS_2
from cases_values import new, raises

O = mx.optimizer
SHAPE = (7, 3)
STEPS = 8
#: Those that leave rows alone. Version 2's are to be told.
LAZY = {
    "momentum": lambda **k: O.SGD(learning_rate=0.1, momentum=0.9, lazy_update=True, **k),
    "decay": lambda **k: O.SGD(learning_rate=0.1, **{"wd": 0.1, "lazy_update": True, **k}),
    "adam": lambda **k: O.Adam(learning_rate=0.01, epsilon=1e-4, lazy_update=True, **k),
    # On workers in any case.
    "clipped": lambda **k: O.SGD(learning_rate=0.1, momentum=0.9, clip_gradient=0.5, lazy_update=True, **k),
}
#: Those that do not: on servers.
WHOLE = {
    "plain": lambda **k: O.SGD(learning_rate=0.1, **k),
    "whole_momentum": lambda **k: O.SGD(learning_rate=0.1, momentum=0.9, lazy_update=False, **{"wd": 0.1, **k}),
    "whole_adam": lambda **k: O.Adam(learning_rate=0.01, epsilon=1e-4, lazy_update=False, **k),
    "ada_grad": lambda **k: O.AdaGrad(learning_rate=0.1, **k),
    "rms_prop": lambda **k: O.RMSProp(learning_rate=0.01, **k),
}


def first():
    return np.random.RandomState(99).normal(0, 1, SHAPE).astype("f4")


def named(step, rank):
    """The rows that a worker pushes: some of both, some of one; in one step none at all, and row 6 never."""
    return [] if step == 3 else sorted({step % 3, (step + rank) % 5, 5 * (step % 2) * rank})


def rows(ids, values=None, dtype="float32"):
    values = np.ones((len(ids), SHAPE[1])) if values is None else values
    if not ids:
        return mx.nd.sparse.zeros("row_sparse", SHAPE, dtype=dtype)
    return mx.nd.sparse.row_sparse_array((values, np.array(ids, "i8")), shape=SHAPE, dtype=dtype)


def gradient(step, rank):
    """Of a worker. The first row that it names is of zeros in every other step: MXNet counts it."""
    ids = named(step, rank)
    values = np.random.RandomState(10 * step + rank).normal(0, 1, (len(ids), SHAPE[1])).astype("f4")
    values[: step % 2] = 0
    return rows(ids, values)


class Reference:
    """MXNet's own updater, on the sum that MXNet makes of all workers' rows."""

    def __init__(self, optimizer, is_sparse):
        self.updater, self.weight = O.get_updater(optimizer), mx.nd.array(first())
        if is_sparse:
            self.weight = mx.nd.sparse.row_sparse_array((self.weight, np.arange(SHAPE[0])), shape=SHAPE)

    def step(self, step, workers):
        total = gradient(step, 0)
        for rank in range(1, workers):
            total = mx.nd.sparse.elemwise_add(total, gradient(step, rank))
        self.updater(0, total, self.weight)
        return self.weight.asnumpy()


def pulled(kv, key):
    """All of it, whichever way."""
    out, dense = mx.nd.sparse.zeros("row_sparse", SHAPE), mx.nd.zeros(SHAPE)
    kv.row_sparse_pull(key, out=out, row_ids=mx.nd.arange(SHAPE[0]))
    kv.pull(key, out=dense)
    assert kv.is_async or (out.asnumpy() == dense.asnumpy()).all()
    return dense.asnumpy()


def close(a, b):
    return np.allclose(a, b, rtol=2e-5, atol=2e-6)


def compare(kv, reference, steps):
    for step in steps:
        kv.push(0, gradient(step, kv.rank))
        want, mine = reference.step(step, kv.num_workers), pulled(kv, 0)
        assert close(mine, want), f"step {step}: {np.abs(mine - want).max(axis=1)}"


def _add(name, make, is_lazy):
    def case():
        for is_sparse in (False, True):
            for more in ({}, {"rescale_grad": 0.25}):
                kv = new()
                kv.set_optimizer(make(**more))
                kv.init(0, mx.nd.array(first()).tostype("row_sparse" if is_sparse else "default"))
                compare(kv, Reference(make(**more), is_sparse), range(STEPS))
                assert kv._keys[0].is_by_rows == is_lazy
                # Row 6 was never named.
                assert (pulled(kv, 0)[6] == first()[6]).all() or not is_lazy

    globals()[f"case_rows_of_{name}_are_mxnets"] = case


for _name, _make in LAZY.items():
    _add(_name, _make, True)
for _name, _make in WHOLE.items():
    _add(_name, _make, False)


def case_rows_without_gradient_stay():
    kv = new()
    kv.set_optimizer(O.SGD(learning_rate=1, momentum=0.5, lazy_update=True))
    kv.init("w", mx.nd.ones((3, 1)))
    for row in (0, 1, 1):
        one = mx.nd.sparse.row_sparse_array((np.ones((1, 1)), np.array([row])), shape=(3, 1))
        kv.push("w", one * (1 / kv.num_workers))
    out = mx.nd.zeros((3, 1))
    kv.pull("w", out=out)
    assert out.asnumpy().ravel().tolist() == [0, -1.5, 1], out.asnumpy()


def case_rows_of_ftrl_are_mxnets_by_the_kind_of_weights():
    for is_sparse in (False, True):
        kv, make = new(), lambda: O.Ftrl(learning_rate=0.1)
        kv.set_optimizer(make())
        kv.init(0, mx.nd.array(first()).tostype("row_sparse" if is_sparse else "default"))
        compare(kv, Reference(make(), is_sparse), range(STEPS))
        assert kv._keys[0].is_by_rows == is_sparse


def case_dense_keys_stay_on_servers_beside_rows():
    """One optimizer for both, whose rate changes, and whose states are saved and loaded."""
    make = LAZY["adam"]
    kv, optimizer, own = new(), make(), make()
    # Version 2 writes no row-sparse states.
    stype = "default" if IS_2 else "row_sparse"
    reference, dense = Reference(own, not IS_2), mx.nd.array(first())
    kv.set_optimizer(optimizer)
    kv.init([0, 1], [mx.nd.array(first()).tostype(stype), mx.nd.array(first())])
    out = mx.nd.zeros(SHAPE)

    def both(store, steps):
        for step in steps:
            store.pushpull(1, mx.nd.ones(SHAPE) * step, out=out)
            reference.updater(1, mx.nd.ones(SHAPE) * step * kv.num_workers, dense)
            compare(store, reference, [step])
            assert close(out.asnumpy(), dense.asnumpy()), step

    both(kv, range(3))
    for one in (optimizer, own):
        one.set_learning_rate(0.03)
    both(kv, range(3, 6))
    assert kv._updater is None and kv._keys[0].is_by_rows and kv._keys[1].stored is None
    with tempfile.TemporaryDirectory() as directory:
        name = os.path.join(directory, "states")
        kv.save_optimizer_states(name, dump_optimizer=True)
        later = new()
        later.set_optimizer(make())
        later.init([0, 1], [mx.nd.array(pulled(kv, 0)).tostype(stype), out])
        later.load_optimizer_states(name)
    both(later, range(6, STEPS))


def case_kinds_of_gradients_are_not_mixed():
    kv = new()
    kv.set_optimizer(LAZY["adam"]())
    kv.init(["rows", "dense"], [mx.nd.array(first())] * 2)
    kv.push("rows", rows([kv.rank]))
    kv.push("dense", mx.nd.ones(SHAPE))
    raises("lazy_update=False", lambda: kv.push("rows", mx.nd.ones(SHAPE)))
    raises("row-sparse and dense", lambda: kv.push("dense", rows([1])))
    # Nothing was contributed: they go on.
    kv.push("rows", rows([2]))
    assert (pulled(kv, "rows")[3:] == first()[3:]).all()
    kv.pushpull("dense", mx.nd.ones(SHAPE), out=mx.nd.zeros(SHAPE))
    # Another optimizer, another kind; without one it is no matter.
    kv = new()
    kv.init("w", mx.nd.array(first()))
    kv.push("w", mx.nd.ones(SHAPE))
    kv.push("w", rows([1]))
    kv.set_optimizer(LAZY["momentum"]())
    kv.push("w", rows([1]))
    want = np.zeros(SHAPE)
    want[1] = kv.num_workers * 0.9
    assert close(pulled(kv, "w"), want)


def case_rows_in_asynchronous_stores():
    kv = new("gradwire_async")
    kv.set_optimizer(LAZY["momentum"]())
    kv.init("w", mx.nd.array(first()))
    raises("lazy_update=False", lambda: kv.push("w", rows([1])))
    kv.push("w", mx.nd.ones(SHAPE))
    kv = new("gradwire_async")
    kv.set_optimizer(WHOLE["plain"]())
    kv.init("w", mx.nd.zeros(SHAPE))
    kv.push("w", rows([1]))
    # Its own is there before others look.
    pulled(kv, "w")
    kv._barrier()
    assert close(pulled(kv, "w")[:, 0], [0, -0.1 * kv.num_workers, 0, 0, 0, 0, 0])


def case_updaters_of_scripts_see_rows():
    kv, seen = new(), []
    kv.init("w", mx.nd.zeros(SHAPE))

    def updater(key, total, stored):
        seen.append(total.indices.asnumpy().tolist())
        stored += total.tostype("default")

    kv._set_updater(updater)
    kv.push("w", rows([kv.rank, 4], np.zeros((2, SHAPE[1]))))
    assert seen == [[0, 1, 4]], seen


class Adding(O.Optimizer):
    """A script's own, as MXNet's `test` is: its state is a dense array that row-sparse weights cannot be assigned to."""

    def create_state(self, index, weight):
        return mx.nd.zeros(weight.shape, weight.context)

    def update(self, index, weight, grad, state):
        # MXNet 2 gives lists.
        each = zip(weight, grad, state) if isinstance(index, (list, tuple)) else [(weight, grad, state)]
        for weight, grad, state in each:
            weight[:] += grad * self.rescale_grad
            state[:] = weight


def case_optimizers_of_scripts_that_cannot_use_sparse_weights_get_dense_ones():
    """MXNet's servers ignore the exception, which comes after the update. The values are those of one process: `Test` of MXNet 2 has
    another rule than that of MXNet 1."""
    for make in (O.Test, Adding):
        for stype in ("row_sparse", "default"):
            kv, weight, alone = new(), mx.nd.array(first()), O.get_updater(make(rescale_grad=0.5))
            kv.set_optimizer(make(rescale_grad=0.5))
            kv.init(0, mx.nd.array(first()).tostype(stype))
            for step in range(STEPS):
                kv.push(0, gradient(step, kv.rank))
                total = sum(gradient(step, rank).asnumpy() for rank in range(kv.num_workers))
                alone(0, mx.nd.array(total), weight)
                assert close(pulled(kv, 0), weight.asnumpy()), (make, stype, step)
