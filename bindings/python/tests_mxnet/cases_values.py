"""What keys hold: sums, first values, order, types and shapes. Each worker contributes something of its own."""

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError

SHAPE = (3, 4)


def new(name="gradwire"):
    kv = mx.kv.create(name)
    assert isinstance(kv, mx.kvstore.KVStore)
    return kv


def raises(text, call):
    try:
        call()
    except MXNetError as error:
        assert text in str(error), f"{text!r} is not in {error}"
    else:
        raise AssertionError(f"no error with {text!r}")


def total(kv, of=lambda rank: rank + 1):
    return sum(of(rank) for rank in range(kv.num_workers))


def case_rank_0_sets_the_first_value():
    kv = new()
    kv.init("weight", mx.nd.ones(SHAPE) * (kv.rank + 5))
    out = mx.nd.zeros(SHAPE)
    kv.pull("weight", out=out)
    assert (out.asnumpy() == 5).all()
    kv.broadcast("other", mx.nd.ones(SHAPE) * (kv.rank + 7), out=out)
    assert (out.asnumpy() == 7).all()


def case_pushes_are_summed():
    kv = new()
    kv.init(3, mx.nd.zeros(SHAPE))
    out = mx.nd.zeros(SHAPE)
    kv.push(3, mx.nd.ones(SHAPE) * (kv.rank + 1))
    kv.pull(3, out=out)
    assert (out.asnumpy() == total(kv)).all()
    kv.pushpull(3, mx.nd.ones(SHAPE) * (kv.rank + 1) * 2, out=out)
    assert (out.asnumpy() == 2 * total(kv)).all()
    gradient = mx.nd.ones(SHAPE) * (kv.rank + 1)
    kv.pushpull(3, gradient)
    assert (gradient.asnumpy() == total(kv)).all(), "without out, where the gradient was"


def case_arrays_of_the_numpy_kind():
    kv = new()
    kv.init(4, mx.np.zeros(SHAPE))
    gradient = mx.np.ones(SHAPE) * (kv.rank + 1)
    for out in (gradient, None):
        gradient[:] = kv.rank + 1
        kv.pushpull(4, gradient, out=out)
        assert (gradient.asnumpy() == total(kv)).all(), "in its own place"


def case_lists_of_keys_and_devices():
    kv = new()
    keys = ["a", "b", "c"]
    kv.init(keys, [mx.nd.zeros(SHAPE)] * 3)
    devices = [mx.cpu(0), mx.cpu(1)]
    values = [[mx.nd.ones(SHAPE, device) * (kv.rank + 1) for device in devices] for _ in keys]
    outs = [[mx.nd.zeros(SHAPE, device) for device in devices] for _ in keys]
    kv.push(keys, values)
    kv.pull(keys, out=outs)
    for out in sum(outs, []):
        assert (out.asnumpy() == 2 * total(kv)).all()
    kv.pushpull(keys, values, out=outs, priority=-3)
    for out in sum(outs, []):
        assert (out.asnumpy() == 2 * total(kv)).all()


def case_a_gradient_is_never_aliased():
    kv = new()
    kv.init("big", mx.nd.zeros((600_000,)))
    kv.init("small", mx.nd.zeros(SHAPE))
    for key, shape in (("big", (600_000,)), ("small", SHAPE)):
        gradient, out = mx.nd.ones(shape) * (kv.rank + 1), mx.nd.zeros(shape)
        kv.push(key, gradient)
        # What is pushed is what it was, whatever becomes of it now.
        gradient *= 100
        kv.pull(key, out=out)
        assert (out.asnumpy() == total(kv)).all()
        assert (gradient.asnumpy() == 100 * (kv.rank + 1)).all(), "a pull must not write it"


def case_operations_of_a_key_are_in_order():
    kv = new()
    shapes = {"one": (5,), "two": (300_000,)}
    for key, shape in shapes.items():
        kv.init(key, mx.nd.zeros(shape))
    outs = []
    for turn in range(1, 101):
        for key, shape in shapes.items():
            out = mx.nd.zeros(shape)
            kv.push(key, mx.nd.ones(shape) * turn * (kv.rank + 1), priority=turn % 3)
            kv.pull(key, out=out, priority=-turn)
            outs.append((turn, out))
    wrong = [turn for turn, out in outs if not (out.asnumpy() == turn * total(kv)).all()]
    assert not wrong, f"turns {wrong}"


def case_pulls_that_follow_pushes_and_pulls_that_do_not():
    """Whether a push brings the weights, too, is a matter of what was done before; what a pull brings is not."""
    kv = new()
    for size in (5, 300_000):
        kv.init(size, mx.nd.zeros((size,)))
        out, other, round_ = mx.nd.zeros((size,)), mx.nd.zeros((size,)), 0
        for pushes, pulls in ((1, 1), (1, 2), (1, 0), (2, 1), (3, 0), (1, 1), (2, 0), (1, 3)) * 3:
            for _ in range(pushes):
                round_ += 1
                kv.push(size, mx.nd.ones((size,)) * round_)
            for _ in range(pulls):
                kv.pull(size, out=out)
                assert (out.asnumpy() == round_ * kv.num_workers).all(), (size, round_)
            if pulls > 1:
                # One that is no place for it, and one in between.
                wrong = mx.nd.zeros((2,))
                kv.push(size, mx.nd.ones((size,)) * round_)
                kv.pull(size, out=wrong)
                raises("an array has 8 bytes", wrong.wait_to_read)
                kv.pushpull(size, mx.nd.ones((size,)), out=other)
                assert (other.asnumpy() == kv.num_workers).all()
        kv.push(size, mx.nd.ones((size,)))


def case_shapes_and_types():
    kv = new()
    for number, (shape, dtype) in enumerate(
        [
            ((7,), "float64"),
            ((2, 3, 4), "float32"),
            ((8, 4, 3, 3), "float32"),
            ((5, 5), "float16"),
            ((6,), "int32"),
            ((6,), "int64"),
            ((6,), "int8"),
            ((1,), "uint8"),
        ]
    ):
        kv.init(number, mx.nd.ones(shape, dtype=dtype))
        out = mx.nd.zeros(shape, dtype=dtype)
        kv.pull(number, out=out)
        assert (out.asnumpy() == 1).all(), dtype
        kv.push(number, mx.nd.ones(shape, dtype=dtype) * (kv.rank + 1))
        kv.pull(number, out=out)
        assert (out.asnumpy() == total(kv)).all() and out.asnumpy().dtype == np.dtype(dtype), (shape, dtype)


def case_layouts_of_the_compute_library():
    kv = new()
    net = mx.gluon.nn.Conv2D(32, 3, in_channels=16)
    net.initialize()
    batch = mx.nd.ones((4, 16, 8, 8))
    x = batch.as_np_ndarray() if int(mx.__version__[0]) >= 2 else batch
    net(x).wait_to_read()
    weight = net.weight.data()
    kv.init("conv", mx.nd.zeros(weight.shape))
    for turn in range(3):
        # After an inference the weights lie in a layout of its own.
        net(x).wait_to_read()
        kv.push("conv", mx.nd.ones(weight.shape) * (turn + 1))
        kv.pull("conv", out=weight)
        want = total(kv, lambda _: turn + 1)
        assert (weight.asnumpy() == want).all()
        assert np.allclose(net(x).asnumpy()[:, :, 3, 3], want * 16 * 9 + net.bias.data().asnumpy())


def case_encoded_gradients():
    kv = new()
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.init("two", mx.nd.zeros((40,)))
    left, out = np.zeros(40, "f4"), mx.nd.zeros((40,))
    steps = [np.linspace(-1, 1, 40).astype("f4") * scale for scale in (1, 0.3, 0.3, 2)]
    for step in steps:
        # Every worker encodes the same: what is left out waits for the next.
        left += step
        sent = np.where(left >= 0.5, 0.5, np.where(left <= -0.5, -0.5, 0)).astype("f4")
        left -= sent
        kv.push("two", mx.nd.array(step))
        kv.pull("two", out=out)
        assert np.allclose(out.asnumpy(), sent * kv.num_workers), step
    raises("before keys", lambda: kv.set_gradient_compression({"type": "2bit"}))
    one = new()
    one.set_gradient_compression({"type": "1bit"})
    one.init("one", mx.nd.zeros((40,)))
    one.push("one", mx.nd.array(steps[0]))
    one.pull("one", out=out)
    assert (np.sign(out.asnumpy()) == np.where(steps[0] < 0, -1, 1)).all()
    raises("unknown compression", lambda: new().set_gradient_compression({"type": "3bit"}))


def case_rows_of_sparse_weights():
    kv = new()
    shape = (6, 2)
    first = mx.nd.array(np.arange(12).reshape(shape)).tostype("row_sparse")
    kv.init("table", first)
    out = mx.nd.sparse.zeros("row_sparse", shape)
    with mx.autograd.record():
        kv.row_sparse_pull("table", out=out, row_ids=mx.nd.array([4, 1, 4], dtype="int64"))
    assert out.indices.asnumpy().tolist() == [1, 4] and out.data.asnumpy().tolist() == [[2, 3], [8, 9]]
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=1.0))
    # Rows of the workers differ, but for row 0.
    rows = [0, 1 + kv.rank]
    gradient = mx.nd.sparse.row_sparse_array((mx.nd.ones((2, 2)), mx.nd.array(rows, dtype="int64")), shape=shape)
    kv.push("table", gradient)
    outs = [mx.nd.sparse.zeros("row_sparse", shape) for _ in range(2)]
    kv.row_sparse_pull("table", out=outs, row_ids=[mx.nd.array([0]), mx.nd.array([1, 2, 5])])
    assert outs[0].data.asnumpy().tolist() == [[-2, -1]]
    assert outs[1].data.asnumpy().tolist() == [[1, 2], [3, 4], [10, 11]]
    # A worker whose batch has no rows.
    kv.row_sparse_pull("table", out=outs[0], row_ids=mx.nd.array([]))
    assert not outs[0].asnumpy().any()


def case_what_a_store_says_of_itself():
    kv = new()
    assert kv.num_workers == 2 and kv.rank in (0, 1)
    assert "dist" in kv.type and "_sync" in kv.type and "async" not in kv.type
    assert kv.is_capable("optimizer") and kv.num_dead_node == 0 == kv.get_num_dead_node(7)
    assert "async" in new("gradwire_async").type and "_sync" not in new("dist_gradwire_async").type
    kv._barrier()
    kv.barrier()
    kv._send_command_to_servers(2, "")
    raises("unsupported command", lambda: kv._send_command_to_servers(0, b"a pickle"))


def case_mistakes_are_told():
    kv = new()
    out = mx.nd.zeros(SHAPE)
    raises("not initialised", lambda: kv.pull("nobody", out=out))
    kv.init("x", mx.nd.ones(SHAPE))
    raises("is already initialised", lambda: kv.init("x", mx.nd.ones(SHAPE)))
    wrong = mx.nd.zeros((2,))
    kv.pull("x", out=wrong)
    raises("an array has 8 bytes", wrong.wait_to_read)
    kv.pull("x", out=out)
    assert (out.asnumpy() == 1).all(), "the key works on"
    asynchronous = new("gradwire_async")
    raises("gradwire serve", lambda: asynchronous.set_optimizer(mx.optimizer.Signum()))
