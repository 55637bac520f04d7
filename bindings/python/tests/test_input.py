"""What does not fit is refused by name, before anything is sent, and leaves the client as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire.client import Client
from test_moves import OnlyDlpack

GOOD = np.ones((8, 4), np.float32)


def read_only() -> np.ndarray:
    values = GOOD.copy()
    values.flags.writeable = False
    return values


def unaligned() -> np.ndarray:
    return np.frombuffer(bytearray(GOOD.nbytes + 1), np.uint8)[1:].view(np.float32).reshape(8, 4)


ARRAYS: dict[str, tuple[str, Callable[[], Any]]] = {
    "text": ("wrong_array", lambda: "weights"),
    "list": ("wrong_array", lambda: [1.0, 2.0]),
    "nothing": ("wrong_array", lambda: None),
    "number": ("wrong_array", lambda: 1.0),
    "double": ("wrong_dtype", lambda: GOOD.astype(np.float64)),
    "swapped": ("wrong_dtype", lambda: GOOD.astype(">f4")),
    "complex": ("wrong_dtype", lambda: GOOD.astype(np.complex64)),
    "bool": ("wrong_dtype", lambda: GOOD.astype(bool)),
    "objects": ("wrong_dtype", lambda: GOOD.astype(object)),
    "structured": ("wrong_dtype", lambda: np.zeros((8, 4), [("a", "f4")])),
    "columns first": ("not_contiguous", lambda: np.asfortranarray(GOOD)),
    "every other": ("not_contiguous", lambda: np.ones((8, 8), np.float32)[:, ::2]),
    "backwards": ("not_contiguous", lambda: GOOD[::-1]),
    "broadcast": ("not_contiguous", lambda: np.broadcast_to(np.float32(1), (8, 4))),
    "foreign columns": ("not_contiguous", lambda: OnlyDlpack(np.asfortranarray(GOOD))),
    "transposed": ("wrong_shape", lambda: np.ones((4, 8), np.float32)),
    "short": ("wrong_shape", lambda: GOOD[:7]),
    "flat and short": ("wrong_shape", lambda: np.ones(31, np.float32)),
    "empty": ("wrong_shape", lambda: np.ones((0, 4), np.float32)),
    "cuda": ("wrong_device", lambda: OnlyDlpack(GOOD, (2, 3))),
    "rocm": ("wrong_device", lambda: OnlyDlpack(GOOD, (10, 0))),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(one: Client, name: str) -> None:
    code, make = ARRAYS[name]
    tensor = one.declare("w", (8, 4), optimizer=gradwire.Assign())
    calls = [lambda: one.push(tensor, make()), lambda: one.push_pull(tensor, make()), lambda: one.init_start(tensor, make())]
    if name != "nothing":  # Which as `out` means a new array.
        calls += [lambda: one.push_pull(tensor, GOOD, out=make()), lambda: one.pull(tensor, out=make())]
    for call in calls:
        with pytest.raises(gradwire.InputError) as refused:
            call()
        assert refused.value.code == code and str(refused.value)
    assert np.array_equal(one.push_pull(tensor, GOOD).wait(), GOOD), "the client is as it was"
    assert one.stats()["operations_done"] == 1


class Refuses(OnlyDlpack):
    """As torch's tensors that need gradients, or are conjugated."""

    def __dlpack__(self, **words: Any) -> Any:
        raise BufferError("it requires gradients")


class Interrupted(OnlyDlpack):
    def __dlpack__(self, **words: Any) -> Any:
        raise KeyboardInterrupt


def test_an_array_that_its_library_does_not_hand_out_is_refused_with_its_words(one: Client) -> None:
    tensor = one.declare("w", (8, 4), optimizer=gradwire.Assign())
    with pytest.raises(gradwire.InputError, match=r"it requires gradients; .*detach\(\)") as refused:
        one.push(tensor, Refuses(GOOD))
    assert refused.value.code == "wrong_array"
    with pytest.raises(KeyboardInterrupt):
        one.push(tensor, Interrupted(GOOD))


@pytest.mark.parametrize(("code", "make"), [("read_only", read_only), ("not_aligned", unaligned)])
def test_places_for_weights_that_cannot_be_written(one: Client, code: str, make: Callable[[], np.ndarray]) -> None:
    tensor = one.declare("w", (8, 4), optimizer=gradwire.Assign())
    with pytest.raises(gradwire.InputError) as refused:
        one.pull(tensor, out=make())
    assert refused.value.code == code
    # To read them is another thing.
    assert np.array_equal(one.push_pull(tensor, make()).wait(), make())


@pytest.mark.parametrize(
    "words",
    [
        {"key": -1, "shape": 3},
        {"key": 2**64, "shape": 3},
        {"key": 1.5, "shape": 3},
        {"key": True, "shape": 3},
        {"key": None, "shape": 3},
        {"key": 1, "shape": 0},
        {"key": 1, "shape": (3, -1)},
        {"key": 1, "shape": (2**40, 2**40)},
        {"key": 1, "shape": 2**62},
        {"key": 1, "shape": 3, "dtype": "complex64"},
        {"key": 1, "shape": 3, "dtype": "nonsense"},
        {"key": 1, "shape": 3, "mode": "eventually"},
        {"key": 1, "shape": 3, "mode": -1},
        {"key": "x" * 100_000, "shape": 3},
        {"key": 1, "shape": 3, "dtype": "int32", "optimizer": gradwire.SGD(0.1)},
        {"key": 1, "shape": 3, "optimizer": gradwire.SGD(-1.0)},
        {"key": 1, "shape": 3, "optimizer": gradwire.SGD(float("nan"))},
        {"key": 1, "shape": 3, "optimizer": gradwire.Adam(0.1, beta1=1.0)},
        {"key": 1, "shape": 3, "dtype": "float64", "codec": gradwire.OneBit()},
        {"key": 1, "shape": 3, "codec": gradwire.TopK(share=0.9)},
        {"key": 1, "shape": 3, "codec": gradwire.Dither(bits=3)},
    ],
    ids=str,
)
def test_declarations_that_mean_nothing_are_refused(one: Client, words: dict[str, Any]) -> None:
    with pytest.raises((gradwire.InputError, gradwire.DeclareError)) as refused:
        one.declare(**words)
    assert len(str(refused.value)) > 10
    assert one.declare(99, 3).key == 99, "the client is as it was"


def test_tensors_of_another_client_are_refused() -> None:
    with gradwire.launch() as first, gradwire.launch() as second, first.connect() as here, second.connect() as there:
        theirs, mine = there.declare(1, 3), here.declare(1, 3)
        values = np.ones(3, np.float32)
        with pytest.raises(gradwire.InputError) as refused:
            here.push(theirs, values)
        assert refused.value.code == "foreign"
        # Memory of another client's is just an array here.
        array = there.empty(3)
        array[:] = 5
        assert here.push_pull(here.declare(2, 3, optimizer=gradwire.Assign()), array).wait().tolist() == [5, 5, 5]
        assert here.pull(mine, out=array).wait() is array


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"deadlines__operation": 5}, "deadlines.operation_ms"),
        ({"deadlines__operation_ms": "soon"}, "operation_ms"),
        ({"nonsense": 1}, "nonsense"),
        ({"scheduler": "host:port"}, "scheduler.port"),
        ({"transport": "pigeon"}, "pigeon"),
        ({"transport__shm": "sometimes"}, "shm"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((gradwire.SettingError, gradwire.InputError)) as refused:
        gradwire.connect(**settings)
    assert words in str(refused.value)


def test_nobody_there_is_told_within_its_deadline() -> None:
    with pytest.raises(gradwire.ConnectError) as refused:
        gradwire.connect(scheduler="127.0.0.1:9", deadlines__connect_ms=300)
    assert "127.0.0.1:9" in str(refused.value)


def test_a_file_of_settings_is_read_and_a_missing_one_told(tmp_path: Any) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[deadlines]\nconnect_ms = 250\n[scheduler]\nport = 9\n")
    with pytest.raises(gradwire.ConnectError) as refused:
        gradwire.connect(str(file))
    assert ":9" in str(refused.value)
    with pytest.raises(gradwire.SettingError):
        gradwire.connect(tmp_path / "none.toml")


def test_a_full_pool_is_told_with_its_setting() -> None:
    with gradwire.launch(memory__pool_bytes=1 << 20) as cluster, cluster.connect() as client:
        kept = client.empty((1 << 20) // 4 - 16)
        with pytest.raises(gradwire.PoolError) as refused:
            client.empty(100)
        assert isinstance(refused.value, MemoryError) and "memory.pool_bytes" in str(refused.value)
        del kept
        assert client.empty(100).shape == (100,)


def test_a_metric_has_a_short_name_and_a_finite_value(one: Client) -> None:
    one.report_metric("loss", 0.5)
    one.report_metric("loss", 1)
    for name, value in [("loss", float("nan")), ("", 1.0), ("x" * 49, 1.0), ("two\nlines", 1.0)]:
        with pytest.raises(gradwire.InputError) as caught:
            one.report_metric(name, value)
        assert caught.value.code == "metric"
