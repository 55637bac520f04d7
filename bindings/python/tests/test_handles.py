"""Handles: waited for by whom and how often one likes, asked, awaited, calling back; and other threads run meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import gradwire
from conftest import PATIENCE_S, together
from gradwire.client import Client

ONES = np.ones(1000, np.float32)


@pytest.fixture
def half(request: pytest.FixtureRequest) -> Any:
    """Two workers of which the second is slow: (client, release), and release ends the round."""
    with gradwire.launch(workers=2, deadlines__operation_ms=20_000) as cluster:
        clients = together([lambda rank=rank: cluster.connect(node__rank=rank) for rank in range(2)])
        tensors = together([lambda c=client: c.declare(1, 1000, optimizer=gradwire.Assign()) for client in clients])
        yield clients[0], tensors[0], lambda: clients[1].push(tensors[1], ONES)
        for client in clients:
            client.close()


def test_waiting_again_tells_the_same_again(one: Client) -> None:
    tensor = one.declare(1, 1000, optimizer=gradwire.Assign())
    handle = one.push_pull(tensor, ONES)
    first = handle.wait()
    assert handle.wait() is first and handle.wait(0) is first and handle.done() and handle.version == 1
    pushed = one.push(tensor, ONES)
    assert pushed.wait() is None and pushed.wait() is None and pushed.version == 2


def test_a_timeout_leaves_the_operation_under_way(half: Any) -> None:
    client, tensor, release = half
    handle = client.push_pull(tensor, ONES)
    for seconds in [0, 0.05, 0.25]:
        began = time.monotonic()
        with pytest.raises(gradwire.WaitTimeout) as late:
            handle.wait(seconds)
        assert isinstance(late.value, TimeoutError) and time.monotonic() - began >= seconds
    assert not handle.done() and handle.version is None and "in flight" in repr(handle)
    release()
    assert (handle.wait() == 2).all() and handle.version == 1
    with pytest.raises(gradwire.InputError):
        handle.wait(float("nan"))


def test_the_cluster_s_deadline_names_who_is_missing() -> None:
    with gradwire.launch(workers=2, deadlines__operation_ms=300, deadlines__busy_ms=300) as cluster:
        clients = together([lambda rank=rank: cluster.connect(node__rank=rank) for rank in range(2)])
        tensors = together([lambda c=client: c.declare("w", 10) for client in clients])
        handle = clients[0].push_pull(tensors[0], ONES[:10])
        for _ in range(2):
            with pytest.raises(gradwire.DeadlineError) as late:
                handle.wait()
            assert late.value.code == "round_deadline"
            assert str(late.value).startswith('push_pull of tensor "w" timed out after '), late.value
            assert "worker 1 has not contributed to round 1" in str(late.value)
            assert late.value.exit_code > 0
        assert handle.done() and handle.version is None
        for client in clients:
            client.close()


def test_a_busy_worker_is_waited_for_with_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    with gradwire.launch(workers=2, deadlines__operation_ms=800) as cluster:
        clients = together([lambda rank=rank: cluster.connect(node__rank=rank) for rank in range(2)])
        tensors = together([lambda c=client: c.declare("w", 10) for client in clients])
        handle = clients[0].push_pull(tensors[0], ONES[:10])
        with pytest.raises(gradwire.WaitTimeout):
            handle.wait(2.0)
        clients[1].push(tensors[1], ONES[:10]).wait()
        assert (handle.wait() == 2).all()

        def later() -> None:
            # Longer than operation_ms: that so much time passes is what the other is warned of.
            time.sleep(1.5)
            clients[1].barrier("late")

        together([lambda: clients[0].barrier("late"), later])
        for client in clients:
            client.close()
    told = capfd.readouterr().err
    assert 'gradwire: a push_pull of tensor "w" has waited ' in told and "for worker 1 to contribute. " in told, told
    assert 'gradwire: barrier "late" has waited ' in told and "for worker 1 to arrive. " in told, told


@pytest.mark.parametrize("fails", [False, True])
def test_a_pull_that_was_dropped_or_failed_leaves_the_view_to_the_next(fails: bool) -> None:
    within = 300 if fails else 20_000
    with gradwire.launch(workers=2, deadlines__operation_ms=within, deadlines__busy_ms=within) as cluster:
        clients = together([lambda rank=rank: cluster.connect(node__rank=rank) for rank in range(2)])
        tensors = together([lambda c=client: c.declare(1, 1000, optimizer=gradwire.Assign()) for client in clients])
        client, tensor, out = clients[0], tensors[0], np.zeros(1000, np.float32)
        handle = client.push_pull(tensor, ONES, out=out)
        if fails:
            with pytest.raises(gradwire.DeadlineError):
                handle.wait()
        del handle
        clients[1].push(tensors[1], ONES).wait()
        until = time.monotonic() + PATIENCE_S
        # What was dropped ends by itself, a little later.
        while client.stats()["shown_bytes"] < 8000 - 4000 * fails:
            assert time.monotonic() < until, "weights are copied twice for good"
            client.pull(tensor, out=out).wait()
            assert (out == 2).all()
        for one in clients:
            one.close()


def test_callbacks_come_once_each_from_other_threads_or_at_once(half: Any) -> None:
    client, tensor, release = half
    told, came = [], threading.Event()

    def tell(handle: gradwire.Handle) -> None:
        told.append((handle.version, threading.current_thread() is threading.main_thread()))
        if len(told) == 2:
            came.set()

    handle = client.push_pull(tensor, ONES, out=np.zeros(1000, np.float32))
    handle.add_done_callback(tell)
    handle.add_done_callback(tell)
    assert told == []
    release()
    assert came.wait(PATIENCE_S) and told == [(1, False)] * 2
    handle.add_done_callback(tell)
    assert told[2] == (1, True)
    assert (handle.wait() == 2).all(), "the copy was made before anybody was told"


def test_a_callback_that_raises_is_told_and_harms_nobody(half: Any) -> None:
    client, tensor, release = half
    came, unraisable = threading.Event(), []
    handle = client.push(tensor, ONES)
    handle.add_done_callback(lambda _: 1 / 0)
    handle.add_done_callback(lambda _: came.set())
    old, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        release()
        assert came.wait(PATIENCE_S)
    finally:
        sys.unraisablehook = old
    assert [told.exc_type for told in unraisable] == [ZeroDivisionError]
    with pytest.raises(ZeroDivisionError):
        handle.add_done_callback(lambda _: 1 / 0)


def test_handles_are_awaited(client: Client) -> None:
    tensors = [client.declare(key, 1000, optimizer=gradwire.Sum()) for key in range(20)]

    async def rounds(tensor: gradwire.Tensor) -> float:
        for _ in range(20):
            weights = await client.push_pull(tensor, ONES)
        pushed = client.push(tensor, ONES)
        assert await pushed is None and await pushed is None
        return float(weights[0])

    async def main() -> list[float]:
        return await asyncio.gather(*[rounds(tensor) for tensor in tensors])

    before = threading.active_count()
    assert asyncio.run(main()) == [20.0] * 20
    assert threading.active_count() == before, "nobody waits on a thread of their own"


def test_awaiting_raises_and_can_be_given_up(half: Any) -> None:
    client, tensor, release = half

    async def main() -> None:
        handle = client.push_pull(tensor, ONES)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_wrapped(handle), 0.1)
        release()
        assert (await handle == 2).all()
        lost = client.push_pull(tensor, ONES)
        waiting = asyncio.ensure_future(_wrapped(lost))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, client.close)
        with pytest.raises(gradwire.ClosedError):
            await waiting

    async def _wrapped(handle: gradwire.Handle) -> Any:
        return await handle

    asyncio.run(main())


def test_a_loop_that_ended_is_not_told(half: Any) -> None:
    client, tensor, release = half
    handle = client.push_pull(tensor, ONES)

    async def give_up() -> None:
        async def wait() -> None:
            await handle

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up())
    release()
    assert (handle.wait() == 2).all()


def test_many_threads_wait_for_one_handle(half: Any) -> None:
    client, tensor, release = half
    handle = client.push_pull(tensor, ONES, out=np.zeros(1000, np.float32))
    timer = threading.Timer(0.3, release)
    timer.start()
    results = together([handle.wait] * 8)
    assert all(result is results[0] for result in results) and (results[0] == 2).all()
    timer.join()


def test_other_threads_run_while_one_waits(half: Any) -> None:
    client, tensor, release = half
    waiting, steps = threading.Event(), 0

    def wait() -> None:
        waiting.set()
        client.push_pull(tensor, ONES).wait()

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(PATIENCE_S)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        steps += 1
    release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and steps > 1000, "the interpreter's lock was held"


def test_several_threads_share_a_client(client: Client) -> None:
    tensors = [client.declare(key, 5000, optimizer=gradwire.Sum()) for key in range(4)]

    def work(tensor: gradwire.Tensor) -> float:
        mine, out = np.ones(5000, np.float32), np.zeros(5000, np.float32)
        for _ in range(200):
            client.push_pull(tensor, mine, out=out).wait()
        return float(out.min() + out.max())

    assert together([lambda t=tensor: work(t) for tensor in tensors]) == [400.0] * 4


def test_a_handle_that_is_dropped_cancels_nothing(client: Client) -> None:
    tensor = client.declare(1, 100_000, optimizer=gradwire.Sum())
    for _ in range(50):
        client.push_pull(tensor, np.ones(100_000, np.float32))
        client.pull(tensor, out=np.zeros(100_000, np.float32))
    assert (client.pull(tensor).wait() == 50).all()


SIGNALLED = """
import gradwire, numpy as np, sys, os, signal, threading
client = gradwire.connect()
tensor = client.declare(1, 10)
handle = client.push_pull(tensor, np.ones(10, np.float32))
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    client.close()
"""


@pytest.mark.parametrize("call", ["handle.wait()", "client.barrier()"])
def test_ctrl_c_ends_a_wait(call: str) -> None:
    with gradwire.launch(workers=2) as cluster:
        script = [sys.executable, "-c", SIGNALLED.format(call=call)]
        process = subprocess.Popen(script, env={**cluster.environ(0)}, stdout=subprocess.PIPE, text=True)
        other = cluster.connect(node__rank=1)
        threading.Thread(target=lambda: _quiet(lambda: other.declare(1, 10)), daemon=True).start()
        began = time.monotonic()
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (out, process.returncode) == ("interrupted\n", 0) and time.monotonic() - began < 15
        other.close()


def _quiet(call: Any) -> None:
    try:
        call()
    except gradwire.Error:
        pass


def test_no_signal_is_lost_between(one: Client) -> None:
    """A handler runs while a long call is under way, and the call goes on."""
    came: list[int] = []
    old = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        tensor = one.declare(1, 1000)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            one.push_pull(tensor, ONES).wait()
        assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, old)
