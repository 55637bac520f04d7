"""Trainers: two workers with half of each batch learn what one with all of it does."""

import mxnet as mx
import numpy as np
from cases_optimizers import IS_2
from cases_values import new, raises
from gradwire.mxnet import resume

FEATURES, CLASSES, BATCH, STEPS = 12, 3, 16, 12


def arrays(values):
    return mx.np.array(values) if IS_2 else mx.nd.array(values)


def net_of(weights=None, embedding=None):
    """A small net with weights of its own, the same each time."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, in_units=FEATURES, activation="relu"), mx.gluon.nn.Dense(CLASSES, in_units=8))
    net.initialize()
    random = np.random.RandomState(5)
    for parameter in net.collect_params().values():
        parameter.set_data(arrays(random.normal(0, 0.5, parameter.shape).astype("f4")))
    return net


def batch(step):
    random = np.random.RandomState(1000 + step)
    return random.normal(0, 1, (BATCH, FEATURES)).astype("f4"), random.randint(0, CLASSES, BATCH).astype("f4")


def train(kvstore, part, **how):
    net, loss = net_of(), mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 1e-3}, kvstore=kvstore, **how
    )
    for step in range(STEPS):
        x, y = batch(step)
        with mx.autograd.record():
            value = loss(net(arrays(x[part])), arrays(y[part]))
        value.backward()
        trainer.step(BATCH)
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()], trainer


def halves(kv):
    size = BATCH // kv.num_workers
    return slice(kv.rank * size, (kv.rank + 1) * size)


def same(mine, want):
    for a, b in zip(mine, want):
        assert np.allclose(a, b, rtol=1e-4, atol=1e-5), np.abs(a - b).max()


def case_gluon_updates_on_servers():
    kv = new()
    mine, trainer = train(kv, halves(kv))
    assert trainer._update_on_kvstore and trainer._distributed and kv._updater is None
    same(mine, train(None, slice(None))[0])


def case_gluon_updates_by_itself():
    kv = new()
    mine, trainer = train(kv, halves(kv), update_on_kvstore=False)
    assert not trainer._update_on_kvstore and trainer._distributed
    same(mine, train(None, slice(None))[0])


def case_gluon_makes_its_store_by_name():
    kv = new()
    mine, trainer = train("dist_gradwire", halves(kv))
    assert type(trainer._kvstore).__name__ == "dist_gradwire"
    same(mine, train(None, slice(None))[0])


def case_gluon_learns_with_encoded_gradients():
    kv = new()
    # Gradients here are sums over a batch, about 1: what is left out is fed back.
    mine, _ = train(kv, halves(kv), compression_params={"type": "2bit", "threshold": 0.2})
    want = train(None, slice(None))[0]
    assert all(np.abs(a - b).max() < 2 for a, b in zip(mine, want))
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(mine, want)), "nothing was encoded"


def sparse(kvstore, part):
    layer = mx.gluon.nn.Embedding(20, 4, sparse_grad=True)
    layer.initialize()
    layer.weight.set_data(arrays(np.arange(80).reshape(20, 4).astype("f4") / 40))
    trainer = mx.gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=kvstore)
    for step in range(STEPS):
        ids = np.random.RandomState(step).randint(0, 20, BATCH).astype("f4")
        with mx.autograd.record():
            value = (layer(arrays(ids[part])) ** 2).sum()
        value.backward()
        trainer.step(BATCH)
    return [layer.weight.data().asnumpy()]


def module(kvstore, part):
    data = mx.sym.Variable("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="one"), act_type="relu")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name="two"), name="softmax")
    size = BATCH if part == slice(None) else BATCH // 2
    mod = mx.mod.Module(symbol)
    mod.bind([("data", (size, FEATURES))], [("softmax_label", (size,))])
    random = np.random.RandomState(5)
    shapes = {"one_weight": (8, FEATURES), "one_bias": (8,), "two_weight": (CLASSES, 8), "two_bias": (CLASSES,)}
    weights = {name: mx.nd.array(random.normal(0, 0.5, shape)) for name, shape in shapes.items()}
    mod.init_params(arg_params=weights)
    params = {"learning_rate": 0.2, "momentum": 0.9, "wd": 1e-3}
    mod.init_optimizer(kvstore=kvstore, optimizer="sgd", optimizer_params=params)
    for step in range(STEPS):
        x, y = batch(step)
        mod.forward_backward(mx.io.DataBatch([mx.nd.array(x[part])], [mx.nd.array(y[part])]))
        mod.update()
    found = mod.get_params()[0]
    return [found[name].asnumpy() for name in shapes], mod


# Version 2's gluon has no sparse parameters, and no modules.
if not IS_2:

    def case_gluon_with_sparse_gradients():
        kv = new()
        same(sparse(kv, halves(kv)), sparse(None, slice(None)))

    def case_module():
        kv = new()
        mine, mod = module(kv, halves(kv))
        assert mod._update_on_kvstore and kv._updater is None
        assert mod._optimizer.rescale_grad == 1 / BATCH, "the batch is that of all workers"
        same(mine, module(None, slice(None))[0])

    def case_gluon_with_sparse_weights():
        kv = new()
        table = mx.gluon.contrib.nn.SparseEmbedding(20, 4)
        table.initialize()
        trainer = mx.gluon.Trainer(table.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=kv)
        ids = mx.nd.array([2 + kv.rank, 7])
        for _ in range(3):
            with mx.autograd.record():
                value = table(ids).sum()
            value.backward()
            trainer.step(1)
        every = mx.nd.arange(20)
        rows = table.weight.row_sparse_data(every).asnumpy()
        fresh = new()
        fresh.init("w", mx.nd.array(rows))
        out = mx.nd.zeros(rows.shape)
        fresh.pull("w", out=out)
        assert (out.asnumpy() == rows).all(), "all workers have the same"
        assert (rows[7] < rows[2] - 2).all() or (rows[7] < rows[4] - 4).all()


def case_resume_begins_at_the_first_step_and_says_what_it_needs():
    raises("needs a store of Gradwire", lambda: resume(3))
    raises("synchronous store", lambda: resume(new("gradwire_async")))
    raises("call set_optimizer before it", lambda: resume(new()))
    options = {"learning_rate": 0.5}
    parameters = net_of().collect_params()
    raises("needs the batch size", lambda: resume(mx.gluon.Trainer(parameters, "sgd", options, kvstore=new())))
    updates_itself = mx.gluon.Trainer(parameters, "sgd", options, kvstore=new(), update_on_kvstore=False)
    raises("update_on_kvstore=True", lambda: resume(updates_itself, BATCH))
    net = mx.gluon.nn.Dense(2)
    net.initialize()
    deferred = mx.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=new())
    raises("run a forward pass", lambda: resume(deferred, BATCH))
    kv = new()
    kv.init(["dense", "rows"], [mx.nd.ones((3,)), mx.nd.ones((3, 2))])
    kv.set_optimizer(mx.optimizer.Adam(lazy_update=True))
    try:
        assert resume(kv) == 0
        kv.push("dense", mx.nd.ones((3,)))
        raises("before the first step", lambda: resume(kv))
        raises("called resume", lambda: kv.save_optimizer_states("nowhere"))
        rows = mx.nd.sparse.row_sparse_array((mx.nd.ones((1, 2)), [1]), shape=(3, 2))
        raises("do not call resume", lambda: kv.push("rows", rows))
        other = new()
        other.init(0, mx.nd.ones((3,)))
        other.set_optimizer(mx.optimizer.SGD())
        raises("resume was called before", lambda: resume(other))
    finally:
        # For the cases after this one.
        kv._connection.has_resumed = False
