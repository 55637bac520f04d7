"""Optimizers: what servers, or workers, make of a round's gradients is what MXNet's own makes of their sum."""

import logging
import os
import tempfile
import time

import mxnet as mx
import numpy as np
from cases_values import new, raises

O = mx.optimizer
IS_2 = int(mx.__version__[0]) >= 2
SHAPE = (17, 5)
STEPS = 20
#: On servers.
MAPPED = {
    "sgd": lambda **k: O.SGD(learning_rate=0.1, **k),
    "momentum": lambda **k: O.SGD(learning_rate=0.1, momentum=0.9, **k),
    "nag": lambda **k: O.NAG(learning_rate=0.1, momentum=0.9, **k),
    "nag_plain": lambda **k: O.NAG(learning_rate=0.1, momentum=0.0, **k),
    "adam": lambda **k: O.Adam(learning_rate=0.01, epsilon=1e-4, **k),
    "ada_grad": lambda **k: O.AdaGrad(learning_rate=0.1, **k),
    "rms_prop": lambda **k: O.RMSProp(learning_rate=0.01, **k),
    "ftrl": lambda **k: O.Ftrl(learning_rate=0.1, **k),
    "lamb": lambda **k: O.LAMB(learning_rate=0.01, **k),
}
if IS_2:
    MAPPED["adam_w"] = lambda **k: O.AdamW(learning_rate=0.01, **k)
#: On workers.
UNMAPPED = {
    "signum": lambda **k: O.Signum(learning_rate=0.01, **k),
    "ada_delta": lambda **k: O.AdaDelta(**k),
    "clipped": lambda **k: O.SGD(learning_rate=0.1, momentum=0.9, clip_gradient=0.5, **k),
    "centered": lambda **k: O.RMSProp(learning_rate=0.01, centered=True, **k),
    "nag_decayed": lambda **k: O.NAG(**{"learning_rate": 0.1, "momentum": 0.9, "wd": 0.03, **k}),
    "cosine": lambda **k: O.SGD(learning_rate=0.1, lr_scheduler=mx.lr_scheduler.CosineScheduler(15, 0.1), **k),
}


def gradients(step, workers, shape=SHAPE):
    """What each worker contributes."""
    random = np.random.RandomState(step)
    return [random.normal(0, 1, shape).astype("f4") for _ in range(workers)]


def first(shape=SHAPE):
    return np.random.RandomState(99).normal(0, 1, shape).astype("f4")


class Reference:
    """MXNet's own, on the sum of all workers' gradients."""

    def __init__(self, optimizer, dtype="float32"):
        self.updater = O.get_updater(optimizer)
        self.weight = mx.nd.array(first(), dtype=dtype)

    def step(self, step, workers):
        total = mx.nd.array(sum(gradients(step, workers)), dtype=self.weight.dtype)
        self.updater(0, total, self.weight)
        return self.weight.asnumpy()


def compare(kv, optimizer, reference, close, steps=STEPS, between=lambda step: None):
    kv.set_optimizer(optimizer)
    kv.init(0, mx.nd.array(first()))
    out = mx.nd.zeros(SHAPE)
    for step in range(steps):
        between(step)
        kv.pushpull(0, mx.nd.array(gradients(step, kv.num_workers)[kv.rank]), out=out)
        want = reference.step(step, kv.num_workers)
        assert close(out.asnumpy(), want), f"step {step}: {np.abs(out.asnumpy() - want).max()}"


def to_rounding(a, b):
    return np.allclose(a, b, rtol=2e-5, atol=2e-6)


def _add(name, make, on_servers):
    def case():
        for more in ({}, {"wd": 0.03, "rescale_grad": 0.25}):
            if name == "nag":
                more.pop("wd", None)
            kv = new()
            compare(kv, make(**more), Reference(make(**more)), to_rounding)
            assert (kv._updater is None) == on_servers

    globals()[f"case_{name}_is_mxnets"] = case


for _name, _make in MAPPED.items():
    _add(_name, _make, True)
for _name, _make in UNMAPPED.items():
    _add(_name, _make, False)


def case_rates_follow_schedulers():
    for make in (
        lambda: mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=0.1),
        lambda: mx.lr_scheduler.MultiFactorScheduler([3, 9], 0.1, base_lr=0.1),
    ):
        kv = new()
        mine, own = (O.SGD(learning_rate=0.1, momentum=0.9, lr_scheduler=make()) for _ in range(2))
        compare(kv, mine, Reference(own), to_rounding)
        assert kv._updater is None and mine.num_update == STEPS


def case_rates_follow_scripts():
    mine, own = (O.Adam(learning_rate=0.01, epsilon=1e-4) for _ in range(2))

    def between(step):
        if step in (5, 11):
            mine.set_learning_rate(0.05 / step)
            own.set_learning_rate(0.05 / step)

    kv = new()
    compare(kv, mine, Reference(own), to_rounding, between=between)
    assert kv._updater is None


class Warnings(logging.Handler):
    """What the store warns of in a block."""

    def __enter__(self):
        self.texts = []
        logging.getLogger("gradwire.mxnet").addHandler(self)
        return self.texts

    def emit(self, record):
        self.texts.append(record.getMessage())

    def __exit__(self, *_):
        logging.getLogger("gradwire.mxnet").removeHandler(self)


def case_rates_that_differ_between_workers_are_warned_of():
    for make, effect in ((MAPPED["sgd"], "Servers use that of rank 0"), (UNMAPPED["signum"], "diverge")):
        for changer in (0, 1, None):
            kv, optimizer, out = new(), make(), mx.nd.zeros(SHAPE)
            before = optimizer.learning_rate
            kv.set_optimizer(optimizer)
            kv.init([0, 1], [mx.nd.ones(SHAPE)] * 2)
            with Warnings() as texts:
                for step in range(6):
                    if step == 3 and changer in (kv.rank, None):
                        optimizer.set_learning_rate(0.25)
                    for key in (0, 1):
                        kv.pushpull(key, mx.nd.ones(SHAPE), out=out)
                out.wait_to_read()
            if changer != kv.rank:
                assert texts == [], texts
                continue
            values = [f"{0.25 if rank == changer else before:g} on rank {rank}" for rank in range(2)]
            assert len(texts) == 1 and "the learning rate" in texts[0] and effect in texts[0], texts
            assert ", ".join(values) in texts[0], texts
    # What a trainer sets from the size of its batch; and no warning where all set something in each step.
    kv, optimizer, out = new(), O.SGD(learning_rate=0.1), mx.nd.zeros(SHAPE)
    kv.set_optimizer(optimizer)
    kv.init(0, mx.nd.ones(SHAPE))
    with Warnings() as texts:
        for step in range(10):
            optimizer.set_learning_rate(0.1 / (1 + min(step, 7)))
            optimizer.rescale_grad = 1 + kv.rank if step >= 8 else 1
            kv.pushpull(0, mx.nd.ones(SHAPE), out=out)
        out.wait_to_read()
    assert len(texts) == kv.rank and all("rescale_grad" in text and "1 on rank 0, 2 on rank 1" in text for text in texts), texts


def case_parameters_have_their_own_rates():
    kv = new()
    optimizer = O.SGD(learning_rate=0.5, wd=0.1, param_idx2name={0: "a_weight", 1: "a_bias"})
    optimizer.set_lr_mult({"a_bias": 0.25})
    kv.set_optimizer(optimizer)
    keys, outs = ["a_weight", "a_bias"], [mx.nd.zeros(SHAPE) for _ in range(2)]
    kv.init(keys, [mx.nd.ones(SHAPE)] * 2)
    kv.push(keys, [mx.nd.ones(SHAPE)] * 2)
    kv.pull(keys, out=outs)
    for index, (out, rate) in enumerate(zip(outs, (0.5, 0.125))):
        want = 1 - rate * (kv.num_workers + optimizer._get_wd(index))
        assert np.allclose(out.asnumpy(), want), (index, out.asnumpy()[0, 0], want)


def case_halves_have_masters_on_servers():
    kv = new()
    make = lambda: O.SGD(learning_rate=0.01, momentum=0.9, multi_precision=True)
    reference = Reference(make(), "float16")
    kv.set_optimizer(make())
    kv.init(0, mx.nd.array(first(), dtype="float16"))
    out = mx.nd.zeros(SHAPE, dtype="float16")
    for step in range(STEPS):
        halves = [gradient.astype("f2") for gradient in gradients(step, kv.num_workers)]
        kv.pushpull(0, mx.nd.array(halves[kv.rank], dtype="float16"), out=out)
        want = reference.step(step, kv.num_workers)
        # The sum that is compared with was rounded to a half; what servers sum was not.
        assert np.allclose(out.asnumpy(), want, rtol=4e-3, atol=4e-3), step
    assert kv._updater is None


def case_an_optimizer_may_come_late():
    kv = new()
    kv.init(0, mx.nd.array(first()))
    out = mx.nd.zeros(SHAPE)
    kv.push(0, mx.nd.array(gradients(0, kv.num_workers)[kv.rank]))
    kv.pull(0, out=out)
    assert np.allclose(out.asnumpy(), sum(gradients(0, kv.num_workers)), atol=1e-5), "no optimizer: the sum"
    before = out.asnumpy()
    kv.set_optimizer(O.SGD(learning_rate=0.5))
    kv.pushpull(0, mx.nd.ones(SHAPE), out=out)
    assert np.allclose(out.asnumpy(), before - 0.5 * kv.num_workers, atol=1e-5)
    # LAMB's tensors lie elsewhere: it runs here.
    kv.set_optimizer(O.LAMB(learning_rate=0.01))
    assert kv._updater is not None
    kv.pushpull(0, mx.nd.ones(SHAPE), out=out)
    assert not np.allclose(out.asnumpy(), before - 0.5 * kv.num_workers, atol=1e-5)


def case_an_updater_of_the_scripts_own():
    kv = new()
    kv.init(0, mx.nd.ones(SHAPE))

    def twice(key, gradient, stored):
        assert key == 0
        stored += gradient * 2

    kv._set_updater(twice)
    out = mx.nd.zeros(SHAPE)
    kv.push(0, mx.nd.ones(SHAPE) * (kv.rank + 1))
    kv.pull(0, out=out)
    assert (out.asnumpy() == 1 + 2 * 3).all()


def case_updaters_call_keys_as_scripts_do():
    """As MXNet's own, which leaves it to them to make text of the bytes of a name."""
    called = {}
    for kv in (new(), mx.kv.create("local")):
        names = called[type(kv).__name__] = []
        kv._set_updater(lambda name, gradient, stored: names.append(name))
        kv.init("a name", mx.nd.ones(SHAPE))
        kv.push("a name", mx.nd.ones(SHAPE))
        # MXNet's own takes names or numbers, not both.
        if kv.type != "local":
            kv.init(7, mx.nd.ones(SHAPE))
            kv.push(7, mx.nd.ones(SHAPE))
        kv.pull("a name", out=mx.nd.zeros(SHAPE))
        mx.nd.waitall()
    assert called["KVStore"] == [b"a name"] and called["gradwire"] == ["a name", 7], called
    # An optimizer's has numbers, as it had before.
    kv = new()
    kv.set_optimizer(O.Signum(learning_rate=0.01, param_idx2name={3: "w"}))
    kv.init("w", mx.nd.ones(SHAPE))
    kv.push("w", mx.nd.ones(SHAPE))
    assert list(kv._updater.states) == [3]


def case_an_optimizer_that_servers_have_no_rule_for_any_more():
    make = lambda: O.SGD(learning_rate=0.1, momentum=0.9)
    kv, optimizer, reference = new(), make(), Reference(make())
    compare(kv, optimizer, reference, to_rounding, steps=3)
    out = mx.nd.zeros(SHAPE)
    optimizer.clip_gradient = 0.5
    raises("clip_gradient", lambda: kv.push(0, mx.nd.ones(SHAPE)))
    raises("set_optimizer", lambda: kv.init(1, mx.nd.ones(SHAPE)))
    # Nothing was contributed: undone, it goes on.
    optimizer.clip_gradient = None
    kv.pushpull(0, mx.nd.array(gradients(3, kv.num_workers)[kv.rank]), out=out)
    assert to_rounding(out.asnumpy(), reference.step(3, kv.num_workers))
    # Or on the workers, where it begins anew, as MXNet's own does with each set_optimizer.
    optimizer.clip_gradient = 0.5
    kv.set_optimizer(optimizer)
    fresh = O.SGD(learning_rate=0.1, momentum=0.9, clip_gradient=0.5)
    reference.updater = O.get_updater(fresh)
    for step in range(4, 8):
        kv.pushpull(0, mx.nd.array(gradients(step, kv.num_workers)[kv.rank]), out=out)
        assert to_rounding(out.asnumpy(), reference.step(step, kv.num_workers)), step


def _states(make, where):
    """Seven steps, states to a file, and the rest in another store, which goes on from there; and in the first."""
    reference, own = Reference(make()), Reference(make())
    kv, optimizer = new(), make()
    compare(kv, optimizer, reference, to_rounding, steps=7)
    assert (kv._updater is None) == (where == "servers")
    with tempfile.TemporaryDirectory() as directory:
        name = os.path.join(directory, "states")
        kv.save_optimizer_states(name, dump_optimizer=True)
        weight = mx.nd.zeros(SHAPE)
        kv.pull(0, out=weight)
        later = new()
        later.set_optimizer(make())
        later.init(0, weight)
        later.load_optimizer_states(name)
        # What is saved is what MXNet's own saves, and it loads it.
        for step in range(7):
            own.step(step, kv.num_workers)
        with open(name, "rb") as file:
            own.updater.set_states(file.read())
    out = mx.nd.zeros(SHAPE)
    for step in range(7, STEPS):
        mine = mx.nd.array(gradients(step, kv.num_workers)[kv.rank])
        later.pushpull(0, mine, out=weight)
        kv.pushpull(0, mine, out=out)
        want = reference.step(step, kv.num_workers)
        for found in (weight.asnumpy(), out.asnumpy(), own.step(step, kv.num_workers)):
            assert to_rounding(found, want), f"step {step}: {np.abs(found - want).max()}"


def case_states_of_servers_are_saved_and_loaded():
    for name in ("sgd", "momentum", "nag", "adam", "ada_grad", "rms_prop", "ftrl"):
        _states(MAPPED[name], "servers")
    kv = new()
    kv.set_optimizer(MAPPED["lamb"]())
    kv.init(0, mx.nd.ones(SHAPE))
    raises("MXNET_GRADWIRE_UPDATE=workers", lambda: kv.save_optimizer_states("nowhere"))
    raises("no optimizer", lambda: new().save_optimizer_states("nowhere"))
    raises("no optimizer", lambda: new().load_optimizer_states("nowhere"))


def case_a_worker_that_saves_alone_is_told_at_once():
    kv, reference, out = new(), Reference(MAPPED["momentum"]()), mx.nd.zeros(SHAPE)
    kv.set_optimizer(MAPPED["momentum"]())
    kv.init(0, mx.nd.array(first()))

    def step(number):
        kv.pushpull(0, mx.nd.array(gradients(number, kv.num_workers)[kv.rank]), out=out)

    for number in range(6):
        if number == 3 and kv.rank == 0:
            started = time.monotonic()
            raises("every worker must make, but worker 1 continued", lambda: kv.save_optimizer_states("nowhere"))
            assert time.monotonic() - started < 10
        step(number)
        assert to_rounding(out.asnumpy(), reference.step(number, kv.num_workers)), number
    # All together later.
    with tempfile.TemporaryDirectory() as directory:
        kv.save_optimizer_states(os.path.join(directory, "states"))


def case_states_of_workers_are_saved_and_loaded():
    _states(UNMAPPED["signum"], "workers")
    os.environ["MXNET_GRADWIRE_UPDATE"] = "workers"
    try:
        _states(MAPPED["adam"], "workers")
    finally:
        del os.environ["MXNET_GRADWIRE_UPDATE"]


def case_rates_change_where_the_script_says():
    mine, own = (O.SGD(learning_rate=0.1, momentum=0.9) for _ in range(2))
    kv, reference = new(), Reference(own)
    kv.set_optimizer(mine)
    kv.init(0, mx.nd.array(first()))
    out = mx.nd.zeros(SHAPE)
    for step in range(STEPS):
        for optimizer in (mine, own):
            optimizer.set_learning_rate(0.1 / (1 + step // 4))
        # Nobody waits: contributions of steps before may still be the engine's.
        kv.push(0, mx.nd.array(gradients(step, kv.num_workers)[kv.rank]))
        want = reference.step(step, kv.num_workers)
    kv.pull(0, out=out)
    assert to_rounding(out.asnumpy(), want), np.abs(out.asnumpy() - want).max()


def case_asynchronous_updates():
    kv = new("gradwire_async")
    kv.init("early", mx.nd.zeros(SHAPE))
    raises("needs an optimizer", lambda: kv.push("early", mx.nd.ones(SHAPE)))
    kv.set_optimizer(O.SGD(learning_rate=0.5))
    kv.init("w", mx.nd.ones(SHAPE) * 3)
    out = mx.nd.zeros(SHAPE)
    for turn in range(1, 6):
        kv.push("w", mx.nd.ones(SHAPE))
        kv.pull("w", out=out)
        least, most = 3 - 0.5 * turn * kv.num_workers, 3 - 0.5 * turn
        seen = out.asnumpy()
        # This worker's own are in it; of the others' any number: those ahead, too.
        assert (seen <= most).all() and (seen >= 3 - 0.5 * 5 * kv.num_workers).all(), (turn, seen[0, 0], least)
    kv._barrier()
    kv.pull("w", out=out)
    assert (out.asnumpy() == 3 - 0.5 * 5 * kv.num_workers).all(), "none is lost, none is applied twice"
    # A worker that pushes alone waits for nobody.
    if kv.rank == 0:
        kv.push("early", mx.nd.ones(SHAPE))
        kv.pull("early", out=out)
        assert (out.asnumpy() == -0.5).all()
