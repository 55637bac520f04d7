"""Sparse tables, and calls: what has rows or an answer instead of a tensor's version. Rounds without everybody, too."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gradwire
from conftest import PATIENCE_S, together
from gradwire.launching import program

#: Every id the same spread of bits, as hashes of words have.
IDS = np.random.default_rng(0).integers(0, 2**63, 50_000, dtype=np.uint64) * np.uint64(2)


def test_rows_are_what_was_pushed_to_them(client: gradwire.Client) -> None:
    table = client.table("words", 16, gradwire.Sum(), initial=gradwire.Uniform(-1.0, 1.0, seed=3))
    assert table.width == 16 and table.name == "words"
    begun = table.pull_rows(IDS).wait()
    assert begun.shape == (len(IDS), 16) and begun.dtype == np.float32
    assert begun.min() >= -1 and begun.max() < 1 and begun.std() > 0.5
    values = np.random.default_rng(1).integers(-8, 8, begun.shape).astype(np.float32)
    assert table.push_rows(IDS, values).wait() is None
    out = np.zeros_like(begun)
    assert table.pull_rows(IDS, out=out).wait() is out
    assert np.array_equal(out, begun + values)
    # Ids of any type and shape that holds them.
    few = table.pull_rows(IDS[:6].reshape(2, 3)).wait()
    assert few.shape == (2, 3, 16) and np.array_equal(few.reshape(6, 16), out[:6])
    small = np.array([5, 7], np.int32)
    table.push_rows(small, np.ones((2, 16), np.float32)).wait()
    assert np.array_equal(table.pull_rows([5, 7]).wait(), table.pull_rows(small.astype(np.uint64)).wait())
    assert table.pull_rows([]).wait().shape == (0, 16)


def test_steps_only_grow(one: gradwire.Client) -> None:
    table = one.table("steps", 2, gradwire.Sum())
    rows = np.ones((3, 2), np.float32)
    for step in (4, 4, 5):
        table.push_rows([1, 2, 3], rows, step=step).wait()
    with pytest.raises(gradwire.Error, match="step 4 is smaller than step"):
        table.push_rows([1, 2, 3], rows, step=4).wait()
    with pytest.raises(gradwire.InputError):
        table.push_rows([1, 2, 3], rows, step=-1)
    assert np.array_equal(table.pull_rows([1, 2, 3]).wait(), 3 * rows)


@pytest.mark.parametrize("shape", [(4, 6), (3, 2, 4), (4, 3, 2), (3, 8), (23,), (1, 24), (6, 4, 1)])
def test_rows_of_another_shape_are_refused(one: gradwire.Client, shape: tuple[int, ...]) -> None:
    table = one.table("shapes", 4, gradwire.Sum())
    ids = np.arange(6).reshape(2, 3)
    rows = np.arange(24, dtype=np.float32)
    for call in (table.push_rows, table.pull_rows):
        with pytest.raises(gradwire.InputError) as refused:
            call(ids, np.zeros(shape, np.float32))
        assert refused.value.code == "wrong_shape" and str(list(shape)) in str(refused.value)
        assert "[2, 3]" in str(refused.value) and "[6, 4]" in str(refused.value)
    for fits in [(2, 3, 4), (6, 4), (24,)]:
        table.push_rows(ids, rows.reshape(fits)).wait()
    assert np.array_equal(table.pull_rows(ids.ravel()).wait(), 3 * rows.reshape(6, 4))


def test_rows_that_wait_to_be_pushed_are_bounded(one: gradwire.Client) -> None:
    table = one.table("many", 64, gradwire.Sum())
    ids, rows = IDS[:5_000], np.ones((5_000, 64), np.float32)
    flying: list[gradwire.Pending] = []
    for _ in range(300):
        flying = [push for push in flying if not push.done()]
        # Under way, waiting, and in the thread's hand.
        assert len(flying) <= 64 + 64 + 1
        flying.append(table.push_rows(ids, rows))
    gradwire.wait_all(flying)
    assert (table.pull_rows(ids[:3]).wait() == 300).all()


def test_rows_go_by_their_rule_and_duplicates_are_summed(one: gradwire.Client) -> None:
    table = one.table(3, 2, gradwire.SGD(0.5), initial=1.0)
    table.push_rows([4, 9, 4], np.array([[1, 1], [2, 2], [3, 3]], np.float32)).wait()
    assert table.pull_rows([4, 9, 5]).wait().tolist() == [[-1, -1], [0, 0], [1, 1]]
    # The same again is harmless; another declaration of it is not.
    assert np.array_equal(one.table(3, 2, gradwire.SGD(0.5), initial=1.0).pull_rows([9]).wait(), [[0, 0]])
    with pytest.raises(gradwire.InputError, match="declare the same"):
        one.table(3, 4)


def test_pushes_and_pulls_are_in_the_order_they_were_called(one: gradwire.Client) -> None:
    table = one.table("order", 1, gradwire.Sum())
    pulls, pushes = [], []
    for _ in range(200):
        pushes.append(table.push_rows([1], np.ones(1, np.float32)))
        pulls.append(table.pull_rows([1]))
    assert [pull.wait()[0, 0] for pull in pulls] == list(range(1, 201))
    gradwire.wait_all(pushes)


def test_rows_are_admitted_late_and_go_when_there_are_too_many(one: gradwire.Client) -> None:
    late = one.table("late", 1, admit_after=2)
    ten = np.ones((1, 1), np.float32)
    late.push_rows([8], ten).wait()
    assert late.pull_rows([8]).wait() == 0
    late.push_rows([8], ten).wait()
    assert late.pull_rows([8]).wait() == 1
    few = one.table("few", 1, rows_max=1)
    for row in range(1000):
        few.push_rows([row], ten).wait()
    # Each lane of the server keeps one at least.
    assert few.pull_rows(np.arange(1000)).wait().sum() < 10


def test_workers_share_rows() -> None:
    with gradwire.launch(workers=2, servers=2) as cluster:
        clients = together([cluster.connect] * 2)

        def work(client: gradwire.Client) -> np.ndarray:
            table = client.table("shared", 4)
            table.push_rows(np.arange(1000), np.full((1000, 4), client.rank + 1, np.float32)).wait()
            client.barrier()
            return np.asarray(table.pull_rows(np.arange(1000)).wait())

        for rows in together([lambda one=client: work(one) for client in clients]):
            assert np.array_equal(rows, np.full((1000, 4), 3))
        together([client.close for client in clients])


def test_rows_are_awaited_and_called_back_for(one: gradwire.Client) -> None:
    table = one.table("async", 2)
    told = threading.Event()
    handle = table.push_rows(np.arange(10), np.ones((10, 2), np.float32))
    handle.add_done_callback(lambda ended: told.set() if ended is handle and ended.done() else None)
    assert told.wait(PATIENCE_S)

    async def both() -> list[np.ndarray]:
        return list(await asyncio.gather(table.pull_rows([1]), table.pull_rows([2, 3])))

    assert [rows.shape for rows in asyncio.run(both())] == [(1, 2), (2, 2)]


def test_rows_that_do_not_fit_are_refused(one: gradwire.Client) -> None:
    table = one.table("fit", 4)
    good = np.zeros((2, 4), np.float32)
    for ids, values, code in [
        ([1, 2], np.zeros((2, 3), np.float32), "wrong_shape"),
        ([1, 2], np.zeros((2, 4), np.float64), "wrong_dtype"),
        ([1, -2], good, "negative_id"),
        ([0.5, 1.0], good, "wrong_dtype"),
        ([1, 2], np.zeros((2, 8), np.float32)[:, ::2], "not_contiguous"),
    ]:
        with pytest.raises(gradwire.InputError) as error:
            table.push_rows(ids, values)
        assert error.value.code == code
    locked = np.zeros((2, 4), np.float32)
    locked.flags.writeable = False
    with pytest.raises(gradwire.InputError, match="is read-only"):
        table.pull_rows([1, 2], out=locked)
    for key, width in [(1 << 16, 4), (-1, 4), (True, 4), (5, 0), (5, 1 << 20)]:
        with pytest.raises(gradwire.InputError):
            one.table(key, width)
    with pytest.raises(gradwire.InputError, match="lamb"):
        one.table(6, 4, gradwire.LAMB())


def test_closing_ends_rows_under_way_and_those_that_come() -> None:
    with gradwire.launch() as cluster:
        client = cluster.connect()
        table = client.table("closing", 64)
        handles = [table.pull_rows(IDS) for _ in range(20)]
        client.close()
        for handle in handles:
            try:
                handle.wait(PATIENCE_S)
            except (gradwire.ClosedError, gradwire.MemberDiedError):
                pass
        with pytest.raises(gradwire.ClosedError):
            table.pull_rows([1])


def test_a_killed_server_is_told_to_who_waits_for_rows() -> None:
    with gradwire.launch(deadlines__operation_ms=5000) as cluster:
        client = cluster.connect()
        table = client.table("killed", 4)
        cluster.process("server-0").kill()
        with pytest.raises(gradwire.OperationError):
            for _ in range(10_000):
                table.pull_rows([1]).wait()
        client.close()


@pytest.fixture
def answered(tmp_path: Path, transport: str) -> Iterator[gradwire.Client]:
    """The only worker of a cluster whose server has a handler, 7, that sends back what it gets."""
    where = Path(os.path.dirname(program("gradwire-server")))
    os.symlink(program("gradwire-scheduler"), tmp_path / "gradwire-scheduler")
    shutil.copy(where / "examples" / "echo", tmp_path / "gradwire-server")
    with gradwire.launch(programs=tmp_path, transport=transport) as cluster, cluster.connect() as client:
        yield client


def test_calls_are_answered_in_order(answered: gradwire.Client) -> None:
    sent = np.random.default_rng(0).random(500_000)
    reply = answered.call(7, 0, b"head", sent).wait()
    assert reply.head == b"head" and reply.body == sent.tobytes()
    assert answered.call(7).wait() == gradwire.Reply(b"", b"")
    handles = [answered.call(7, head=bytes([at]), body=b"x" * at, timeout=PATIENCE_S) for at in range(100)]
    assert [len(handle.wait().body) for handle in handles] == list(range(100))
    assert handles[5].wait() == (b"\5", b"xxxxx")

    async def awaited() -> gradwire.Reply:
        return await answered.call(7, body=bytearray(b"later"))

    assert asyncio.run(awaited()).body == b"later"


def test_calls_that_nobody_answers_say_so(one: gradwire.Client) -> None:
    with pytest.raises(gradwire.OperationError, match="handler") as error:
        one.call(9, timeout=0.3).wait()
    assert error.value.code == "call"
    with pytest.raises(gradwire.InputError, match="servers"):
        one.call(9, server=4)
    with pytest.raises(gradwire.InputError, match="tables"):
        one.call(1 << 31)
    with pytest.raises(gradwire.WaitTimeout, match="handler 9"):
        one.call(9).wait(0.01)
    with pytest.raises(gradwire.InputError, match="seconds"):
        one.call(9, timeout=-1.0)


def test_rounds_do_not_wait_for_backup_workers() -> None:
    with gradwire.launch(workers=2, cluster__deterministic=False) as cluster:
        clients = together([cluster.connect] * 2)
        ones = np.ones(100_000, np.float32)
        tensors = together([lambda c=c: c.declare("quick", ones.size, optimizer=gradwire.Sum(), backup_workers=1) for c in clients])
        fast = [clients[0].push(tensors[0], ones) for _ in range(3)]
        gradwire.wait_all(fast)
        assert [handle.late_chunks for handle in fast] == [0, 0, 0]
        late = clients[1].push(tensors[1], ones)
        late.wait()
        assert late.late_chunks == 2
        assert clients[0].pull(tensors[0]).wait()[0] == 3
        together([client.close for client in clients])


def test_chunks_tell_their_versions(one: gradwire.Client) -> None:
    tensor = one.declare("chunks", 200_000, mode="async", optimizer=gradwire.Sum())
    plain = one.push(tensor, np.ones(200_000, np.float32))
    plain.wait()
    assert plain.chunk_versions is None
    handle = one.push_pull(tensor.with_chunk_versions(), np.ones(200_000, np.float32))
    assert handle.wait()[0] == 2 and handle.version == 2
    assert handle.chunk_versions == [2] * 4
