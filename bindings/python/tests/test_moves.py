"""Arrays there and back: every type, every kind of memory, the same numbers."""

from __future__ import annotations

import array
import gc
import hashlib
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradwire
from conftest import together
from gradwire.client import Client

#: Several chunks of 256 KiB over two servers, the last one partial.
COUNT = 200_003
TYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]


def numbers(dtype: Any = np.float32, count: int = COUNT, seed: int = 0) -> np.ndarray:
    """Small whole numbers, which every type holds."""
    return np.random.default_rng(seed).integers(0, 100, count).astype(dtype)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_arrives_as_it_was_sent(client: Client, name: str) -> None:
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    tensor = client.declare(name, COUNT, dtype, optimizer=gradwire.Assign())
    assert tensor.dtype == dtype and tensor.nbytes == COUNT * np.dtype(dtype).itemsize
    sent = numbers(dtype)
    made = client.push_pull(tensor, sent).wait()
    assert made.dtype == dtype and np.array_equal(made, sent)
    own = np.zeros(COUNT, dtype)
    assert client.pull(tensor, out=own).wait() is own and np.array_equal(own, sent)
    library = client.empty(COUNT, dtype)
    library[:] = numbers(dtype, seed=1)
    client.push(tensor, library).wait()
    assert np.array_equal(client.pull(tensor, out=own).wait(), library)


def test_one_array_of_the_library_is_gradient_and_weights(client: Client) -> None:
    tensor = client.declare(1, (COUNT,), optimizer=gradwire.Sum())
    both = client.empty(COUNT)
    sent, expected = numbers(), np.zeros(COUNT, np.float32)
    for _ in range(5):
        both[:] = sent
        expected += sent
        assert client.push_pull(tensor, both, out=both).wait() is both
        assert np.array_equal(both, expected)


def test_an_array_of_ones_own_is_gradient_and_weights(client: Client) -> None:
    tensor = client.declare(1, (COUNT,), optimizer=gradwire.Sum())
    both, sent, expected = np.zeros(COUNT, np.float32), numbers(), np.zeros(COUNT, np.float32)
    for _ in range(5):
        both[:] = sent
        expected += sent
        client.push_pull(tensor, both, out=both).wait()
        assert np.array_equal(both, expected)


def test_parts_of_an_array_of_the_library_travel_in_place(client: Client) -> None:
    parts = [client.declare(f"part {at}", (50, 20), optimizer=gradwire.Assign()) for at in range(4)]
    arena, landed = client.empty((4, 50, 20)), client.empty(4000)
    arena[:] = numbers(count=4000).reshape(4, 50, 20)
    handles = [
        client.push_pull(tensor, arena[at], out=landed[1000 * at : 1000 * (at + 1)]) for at, tensor in enumerate(parts)
    ]
    gradwire.wait_all(handles)
    assert np.array_equal(landed.reshape(arena.shape), arena)
    stats = client.stats()
    assert (stats["arrays_copied"], stats["arrays_in_place"]) == (0, 0), "none was taken for an array of one's own"


def test_the_second_push_of_ones_own_array_is_sent_from_where_it_lies(client: Client) -> None:
    tensor = client.declare(1, COUNT, optimizer=gradwire.Assign())
    own = numbers()
    for turn in range(4):
        own[:] = numbers(seed=turn)
        assert np.array_equal(client.push_pull(tensor, own).wait(), own)
    stats = client.stats()
    assert (stats["arrays_copied"], stats["arrays_in_place"], stats["arrays_remembered"]) == (1, 3, 1)
    client.forget(own)
    client.push(tensor, own).wait()
    assert client.stats()["arrays_copied"] == 2


@pytest.mark.parametrize("is_view", [False, True])
def test_an_array_that_was_resized_where_it_lies_is_registered_anew(client: Client, is_view: bool) -> None:
    whole, half = (client.declare(count, count, optimizer=gradwire.Assign()) for count in (COUNT, COUNT // 2))
    own = numbers()

    def push(tensor: Any, count: int) -> None:
        sent = own[:].reshape(count) if is_view else own
        assert np.array_equal(client.push_pull(tensor, sent).wait(), own)

    for _ in range(2):
        push(whole, COUNT)
    assert client.stats()["arrays_registered"] == 1
    own.resize(COUNT // 2, refcheck=False)
    push(half, COUNT // 2)
    assert client.stats()["arrays_remembered"] == 1, "the memory of before is nobody's"
    # It grows again where it was, if the allocator likes to.
    own.resize(COUNT, refcheck=False)
    copied = client.stats()["arrays_copied"]
    push(whole, COUNT)
    stats = client.stats()
    assert (stats["arrays_copied"], stats["arrays_remembered"]) == (copied + 1, 1)


def test_a_view_made_for_each_push_is_known_by_what_it_is_a_view_of(client: Client) -> None:
    tensor = client.declare(1, (100, 10), optimizer=gradwire.Assign())
    own = numbers(count=2000)
    for _ in range(3):
        client.push(tensor, own[1000:].reshape(100, 10)).wait()
    assert client.stats()["arrays_in_place"] == 2
    assert np.array_equal(client.pull(tensor).wait().ravel(), own[1000:])


def test_arrays_that_nobody_has_any_more_are_let_go(client: Client) -> None:
    tensor = client.declare(1, COUNT, optimizer=gradwire.Assign())
    own = numbers()
    gone = weakref.ref(own)
    for _ in range(2):
        client.push(tensor, own).wait()
    del own
    gc.collect()
    assert client.stats()["arrays_remembered"] == 0
    client.push(tensor, numbers(seed=3)).wait()
    client.stats()
    assert gone() is None


def test_views_of_arrays_that_nobody_named_are_sent_from_where_they_lie(one: Client) -> None:
    tensor = one.declare("view", (20, 50), optimizer=gradwire.Assign())
    arrays = [np.full(1000, at, np.float32).reshape(20, 50) for at in range(3)]
    for _ in range(3):
        for at, mine in enumerate(arrays):
            assert (one.push_pull(tensor, mine).wait() == at).all()
    stats = one.stats()
    assert (stats["arrays_copied"], stats["arrays_in_place"], stats["arrays_remembered"]) == (3, 6, 3)
    del mine, arrays
    assert one.stats()["arrays_remembered"] == 0


def test_memory_used_again_never_arrives_under_an_old_name(client: Client) -> None:
    tensor = client.declare(1, 5000, optimizer=gradwire.Assign())
    places = set()
    for turn in range(200):
        own = np.full(5000, turn, np.float32)
        places.add(own.ctypes.data)
        for _ in range(2):
            assert (client.push_pull(tensor, own).wait() == turn).all()
        del own
    assert len(places) < 200, "no address came twice, so this showed nothing"


def test_an_array_freed_in_flight_arrives(transport: str) -> None:
    with gradwire.launch(workers=2, transport=transport) as cluster:

        def work(rank: int) -> np.ndarray:
            with cluster.connect(node__rank=rank) as client:
                tensor = client.declare(1, COUNT, optimizer=gradwire.Assign())
                handles = []
                for turn in range(3):
                    mine = numbers(seed=turn)
                    client_array = client.empty(COUNT)
                    client_array[:] = mine
                    handles += [client.push(tensor, mine), client.push(tensor, client_array)]
                    del mine, client_array
                    # What was freed would be taken by these.
                    np.full(COUNT, np.nan, np.float32)
                    client.empty(COUNT)[:] = np.nan
                gradwire.wait_all(handles)
                return client.pull(tensor).wait().copy()

        results = together([lambda: work(0), lambda: work(1)])
    for result in results:
        assert np.array_equal(result, 2 * numbers(seed=2))


def test_what_numpy_knows_as_memory_is_taken(one: Client) -> None:
    tensor = one.declare(1, 6, optimizer=gradwire.Assign())
    plain = array.array("f", [1, 2, 3, 4, 5, 6])
    for given in [plain, memoryview(plain), np.frombuffer(bytes(plain), np.float32)]:
        assert one.push_pull(tensor, given).wait().tolist() == [1, 2, 3, 4, 5, 6]
    into = array.array("f", bytes(24))
    assert one.pull(tensor, out=into).wait() is into and into.tolist() == plain.tolist()
    octets = one.declare(2, 3, "uint8", optimizer=gradwire.Assign())
    assert one.push_pull(octets, b"abc").wait().tobytes() == b"abc"


class OnlyDlpack:
    """An array of another library, which speaks DLPack alone."""

    def __init__(self, values: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.values, self.device, self.asked = values, device, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **words: Any) -> Any:
        self.asked += 1
        return self.values.__dlpack__(**words)


class OldDlpack(OnlyDlpack):
    """From before version 1."""

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.values.__dlpack__()


@pytest.mark.parametrize("kind", [OnlyDlpack, OldDlpack])
def test_dlpack_arrays_are_taken_where_they_lie(client: Client, kind: type[OnlyDlpack]) -> None:
    tensor = client.declare(1, (1000, 3), optimizer=gradwire.Assign())
    values = numbers(count=3000).reshape(1000, 3)
    foreign = kind(values)
    for turn in range(3):
        values[:] = turn
        assert np.array_equal(client.push_pull(tensor, foreign).wait(), values)
    assert client.stats()["arrays_in_place"] == 2
    library = client.empty((1000, 3))
    library[:] = 7
    assert (client.push_pull(tensor, kind(library)).wait() == 7).all()
    assert client.stats()["arrays_in_place"] == 2


def test_a_dlpack_array_that_can_be_written_is_a_place_for_weights(client: Client) -> None:
    tensor = client.declare(1, 3, optimizer=gradwire.Assign())
    foreign = OnlyDlpack(np.zeros(3, np.float32))
    client.push_pull(tensor, np.arange(3, dtype=np.float32), out=foreign).wait()
    assert foreign.values.tolist() == [0, 1, 2]


def test_scalars_and_flat_arrays_fit(one: Client) -> None:
    scalar = one.declare("scalar", (), optimizer=gradwire.Assign())
    made = one.push_pull(scalar, np.float32(3)).wait()
    assert made.shape == () and made == 3
    for value in range(64):
        # Nobody else has the array that is made of a scalar.
        handle, others = one.push_pull(scalar, np.float32(value)), [np.float32(-1)] * 8
        assert [np.asarray(other) for other in others] and handle.wait() == value
    with pytest.raises(gradwire.InputError, match="is read-only"):
        one.pull(scalar, out=np.float32(0))
    square = one.declare("square", (4, 4), optimizer=gradwire.Assign())
    assert one.push_pull(square, np.arange(16, dtype=np.float32)).wait().shape == (4, 4)
    column = numbers(count=16).reshape(16, 1)
    tall = one.declare("tall", (16, 1), optimizer=gradwire.Assign())
    # A stride that is never used says nothing.
    assert np.array_equal(one.push_pull(tall, column[:, ::2]).wait(), column)


def test_initial_values_are_rank_0s(transport: str) -> None:
    with gradwire.launch(workers=2, transport=transport) as cluster:

        def work(rank: int) -> np.ndarray:
            with cluster.connect(node__rank=rank) as client:
                tensor = client.declare("w", (10, 10))
                client.init(tensor, np.full((10, 10), rank + 1, np.float32))
                return client.pull(tensor).wait().copy()

        for result in together([lambda: work(0), lambda: work(1)]):
            assert (result == 1).all()


def test_unwaited_operations_on_a_tensor_keep_their_order(client: Client) -> None:
    tensor = client.declare(1, 5000, optimizer=gradwire.Assign())
    pulls = []
    for turn in range(300):
        client.push(tensor, np.full(5000, turn, np.float32))
        pulls.append(client.pull(tensor))
    for turn, pull in enumerate(pulls):
        assert (pull.wait() == turn).all() and pull.version == turn + 1


def test_rules_are_applied_by_servers(one: Client) -> None:
    gradient = np.ones(10, np.float32)
    for at, rule in enumerate(
        [
            gradwire.SGD(0.5, momentum=0.9, nesterov=True),
            gradwire.SGD(0.5, schedule=gradwire.Schedule(2, gradwire.CosineDecay(10))),
            gradwire.SGD(0.5, schedule=gradwire.Schedule(0, gradwire.StepDecay(2, 0.5))),
            gradwire.SGD(0.5, schedule=gradwire.Schedule(0, gradwire.ExponentialDecay(0.5))),
            gradwire.SGD(0.5, schedule=gradwire.Schedule(0, gradwire.LinearDecay(10))),
            *[rule(0.1) for rule in gradwire.optimizers._Stepping.__subclasses__()],
            gradwire.AdamW(0.1, weight_decay=0.01),
        ]
    ):
        tensor = one.declare(at, 10, optimizer=rule)
        one.init(tensor, np.ones(10, np.float32))
        weights = one.push_pull(tensor, gradient).wait()
        assert (weights < 1).all() and np.isfinite(weights).all(), rule
    summed = one.declare("sum", 10, optimizer=gradwire.Sum())
    assert (one.push_pull(summed, gradient).wait() == 1).all()
    assert one.change_rule(summed, gradwire.SGD(0.25)) == 2
    assert (one.push_pull(summed, gradient).wait() == 0.75).all()
    with pytest.raises(gradwire.DeclareError, match="no update rule"):
        one.declare("own", 10, optimizer=gradwire.Own("none", {"clip": 1.0}))


def test_adam_is_adam(one: Client) -> None:
    tensor = one.declare(1, 1000, optimizer=gradwire.Adam(0.01))
    weights, mean, square = numbers(np.float64, 1000), np.zeros(1000), np.zeros(1000)
    one.init(tensor, weights.astype(np.float32))
    for step in range(1, 6):
        gradient = np.random.default_rng(step).standard_normal(1000).astype(np.float32)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.astype(np.float64) ** 2
        weights -= 0.01 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        got = one.push_pull(tensor, gradient).wait()
    assert np.allclose(got, weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "codec",
    [
        gradwire.Float16(),
        gradwire.BFloat16(),
        gradwire.OneBit(),
        gradwire.TwoBit(threshold=1.0),
        gradwire.TopK(share=0.1),
        gradwire.RandomK(share=0.2),
        gradwire.Dither(bits=4),
    ],
    ids=lambda codec: type(codec).__name__,
)
def test_codecs_lose_nothing_in_the_long_run(client: Client, codec: gradwire.Codec) -> None:
    tensor = client.declare(1, 4096, optimizer=gradwire.Sum(), codec=codec)
    assert tensor.sent_nbytes < tensor.nbytes
    gradient = client.empty(4096)
    gradient[:] = np.random.default_rng(0).standard_normal(4096) * 0.1
    for turn in range(400):
        # Both kinds of memory are encoded.
        weights = client.push_pull(tensor, gradient if turn % 2 else gradient.copy()).wait()
    error = np.abs(weights / 400 - gradient).mean() / np.abs(gradient).mean()
    assert error < 0.1, error


def test_dynamic_tensors_have_a_length_each_round(client: Client) -> None:
    tensor = client.declare(1, 1000, optimizer=gradwire.Assign(), dynamic=True)
    for count in [10, 1000, 1, 500]:
        client.push(tensor, numbers(count=count, seed=count)).wait()
        assert np.array_equal(client.pull(tensor).wait(), numbers(count=count, seed=count))
    with pytest.raises(gradwire.InputError):
        client.push_pull(tensor, numbers(count=1000))


def test_names_have_keys_of_their_own(one: Client) -> None:
    first, second = one.declare("layer.0.weight", 3), one.declare("layer.1.weight", 3)
    digest = int.from_bytes(hashlib.sha256(b"layer.0.weight").digest()[:8], "little")
    assert first.key == gradwire.key_of_name("layer.0.weight") == digest | 1 << 63
    assert first.key != second.key and (first.name, second.name) == ("layer.0.weight", "layer.1.weight")
    with pytest.raises(gradwire.DeclareError) as refused:
        one.declare(first.key, 3)
    assert refused.value.code == "same_key"
    assert one.declare("layer.0.weight", 3).key == first.key, "again is harmless"
    with pytest.raises(gradwire.DeclareError):
        one.declare("layer.0.weight", 4)


def test_many_are_declared_at_once_and_by_any_kind_of_number(one: Client) -> None:
    declarations = [gradwire.Declaration(np.uint64(key), (key, 2), priority=-key) for key in range(1, 50)]
    tensors = one.declare_all(declarations)
    assert [(tensor.key, tensor.shape, tensor.priority) for tensor in tensors] == [
        (key, (key, 2), -key) for key in range(1, 50)
    ]
    assert one.declare_all([]) == []
    largest = one.declare(2**64 - 1, 1)
    assert largest.key == 2**64 - 1
