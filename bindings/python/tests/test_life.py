"""Beginnings and ends: forks, exits, kills, closes, clusters side by side. Nobody hangs, crashes or is left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Union

import numpy as np
import pytest

import gradwire
from conftest import PATIENCE_S, together
from gradwire.client import Client

ONES = np.ones(1000, np.float32)


def run(cluster: gradwire.Cluster, script: str, rank: int = 0) -> subprocess.CompletedProcess[str]:
    """A trainer as a program of its own."""
    words = [sys.executable, "-X", "faulthandler", "-c", "import gradwire, numpy as np, os, sys, threading\n" + script]
    return subprocess.run(words, env=cluster.environ(rank), capture_output=True, text=True, timeout=PATIENCE_S)


IN_FLIGHT = """
client = gradwire.connect(deadlines__operation_ms=20000)
tensor = client.declare(1, 1000)
library, own, out = client.empty(1000), np.ones(1000, np.float32), np.zeros(1000, np.float32)
handles = [client.push(tensor, library), client.push_pull(tensor, own, out=out), client.pull(tensor), client.push(tensor, own)]
def waits():
    try:
        handles[1].wait()
    except gradwire.ClosedError:
        pass
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "handles[1].add_done_callback(lambda handle: None)",
        "handles[1].add_done_callback(lambda handle: print('told', flush=True))\nclient.close()",
        "threading.Thread(target=waits, daemon=True).start()",
        "threading.Thread(target=waits, daemon=True).start()\nclient.close()",
        "del client",
        "del client, tensor, handles",
        "sys.exit(0)",
        "client.keep = client; client = None",
    ],
)
def test_programs_end_with_operations_open(end: str) -> None:
    with gradwire.launch(workers=2) as cluster:
        other = [lambda: run(cluster, IN_FLIGHT + end), lambda: _declared(cluster)]
        done, client = together(other)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout in ("", "told\n")
        client.close()


def _declared(cluster: gradwire.Cluster) -> Client:
    client = cluster.connect(node__rank=1)
    client.declare(1, 1000)
    return client


def _declared_or_told(cluster: gradwire.Cluster) -> Union[Client, gradwire.MemberDiedError]:
    """The other one declares and fails at once: its death may be known here before the tensor is, or before all are
    connected."""
    try:
        client = cluster.connect(node__rank=1)
    except gradwire.MemberDiedError as told:
        return told
    with contextlib.suppress(gradwire.MemberDiedError):
        client.declare(1, 1000)
    return client


@pytest.mark.parametrize(
    "end",
    [
        "raise ValueError('diverged')",
        "raise TypeError('in user code: ' + 'line, ' * 1000 + 'ValueError: diverged')",
        "with client:\n    raise ValueError('diverged')",
        "client.fail('ValueError: diverged')",
    ],
)
def test_others_are_told_why_a_program_failed(end: str) -> None:
    with gradwire.launch(workers=2) as cluster:
        done, client = together([lambda: run(cluster, IN_FLIGHT + end), lambda: _declared_or_told(cluster)])
        assert "ValueError: diverged" in done.stderr or end.startswith("client.fail")
        if isinstance(client, gradwire.MemberDiedError):
            assert "ValueError: diverged" in str(client)
            return
        until = time.monotonic() + PATIENCE_S
        while client.dead is None and time.monotonic() < until:
            # The scheduler's word has no event in Python; a barrier ends with it.
            with pytest.raises(gradwire.Error):
                client.barrier("end")
        assert "ValueError: diverged" in str(client.dead)
        client.close()


FORKED = """
def child():
    told = []
    for call in [
        lambda: client.push(tensor, own), lambda: client.pull(tensor), lambda: client.declare(2, 3), client.barrier,
        lambda: client.empty(3), client.stats, client.close, handle.wait, handle.done, lambda: client.rank,
        lambda: handle.add_done_callback(print), lambda: client.fail("x"), lambda: np.asarray(memory),
    ]:
        try:
            call()
            told.append("done")
        except gradwire.ForkError as error:
            told.append(error.code)
    return set(told)

client = gradwire.connect()
tensor = client.declare(1, 1000, optimizer=gradwire.Sum())
own, library = np.ones(1000, np.float32), client.empty(1000)
memory = library.base
library[:] = 1
client.push(tensor, own).wait()
handle = client.push_pull(tensor, library)
for end in ["os._exit(0)", "sys.exit(0)", "del client, tensor, handle, library, memory; sys.exit(0)"]:
    pid = os.fork()
    if pid == 0:
        print(child(), flush=True)
        # Arrays are there, and the child's own.
        assert (library == 1).all() or (library == 2).all()
        library[:] = 99
        exec(end)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, end
for _ in range(10):
    weights = client.push_pull(tensor, library).wait()
print(weights[0], handle.wait()[0])
client.close()
"""


def test_a_child_is_refused_and_its_parent_goes_on() -> None:
    with gradwire.launch() as cluster:
        done = run(cluster, FORKED)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout == "{'forked'}\n" * 3 + "12.0 2.0\n"


def _connect_in_child(environ: dict[str, str], queue: Any) -> None:
    os.environ.update(environ)
    with gradwire.connect() as client:
        queue.put(client.push_pull(client.declare(1, 3, optimizer=gradwire.Assign()), ONES[:3]).wait().tolist())


def test_a_child_may_connect_by_itself() -> None:
    """Forked before its parent connected, and while another client of the parent lives."""
    with gradwire.launch() as first, gradwire.launch() as second, first.connect() as client:
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        process = context.Process(target=_connect_in_child, args=(second.environ(0), queue))
        process.start()
        assert queue.get(timeout=PATIENCE_S) == [1, 1, 1]
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        assert client.push_pull(client.declare(1, 3, optimizer=gradwire.Assign()), ONES[:3]).wait().tolist() == [1, 1, 1]


def test_a_child_that_connected_leaves_at_its_end() -> None:
    script = """
if os.fork() == 0:
    client = gradwire.connect()
    assert client.push_pull(client.declare(1, 3), np.ones(3, np.float32)).wait().tolist() == [1, 1, 1]
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    with gradwire.launch() as cluster:
        done = run(cluster, script)
        assert (done.stdout, done.stderr) == ("0\n", "")
        # The only worker has left in good order, so the job is over.
        assert cluster.process("scheduler").wait(PATIENCE_S) == 0


def test_two_clusters_in_one_process(transport: str) -> None:
    with gradwire.launch(transport=transport) as first, gradwire.launch(servers=2, transport=transport) as second:
        with first.connect() as here, second.connect() as there:
            mine = here.declare("w", 1000, optimizer=gradwire.Sum())
            theirs = there.declare("w", 1000, optimizer=gradwire.Assign())
            array = here.empty(1000)
            array[:] = 1
            for turn in range(1, 30):
                handles = [here.push_pull(mine, array), there.push_pull(theirs, array)]
                summed, assigned = gradwire.wait_all(handles)
                assert (summed == turn).all() and (assigned == 1).all()
            here.close()
            assert (there.push_pull(theirs, array).wait() == 1).all()


def test_two_workers_in_one_process(transport: str) -> None:
    with gradwire.launch(servers=2, workers=2, transport=transport) as cluster:

        def work(rank: int) -> float:
            with cluster.connect(node__rank=rank) as client:
                assert (client.rank, client.workers, client.servers) == (rank, 2, 2)
                assert [link.driver for link in client.links] == [transport] * 2 and client.transport == transport
                tensor = client.declare("w", (100, 10), optimizer=gradwire.SGD(1.0))
                client.init(tensor, np.zeros((100, 10), np.float32))
                for _ in range(20):
                    weights = client.push_pull(tensor, np.full((100, 10), rank, np.float32)).wait()
                client.barrier("end")
                return float(weights.mean())

        assert together([lambda: work(0), lambda: work(1)]) == [-10.0, -10.0]


def test_a_dead_server_ends_what_waits_for_it(transport: str) -> None:
    with gradwire.launch(servers=2, workers=1, transport=transport) as cluster:
        client = cluster.connect()
        tensor = client.declare(1, 1 << 20)
        gradient = np.ones(1 << 20, np.float32)
        client.push(tensor, gradient).wait()
        cluster.process("server-1").kill()
        began = time.monotonic()
        with pytest.raises(gradwire.MemberDiedError) as died:
            for _ in range(10_000):
                client.push_pull(tensor, gradient).wait()
        assert time.monotonic() - began < 10 and isinstance(died.value, ConnectionError)
        if died.value.code == "died":
            for words in ("server 1 failed", "tensors 1", "there is no checkpoint", "cluster.replicas = 1"):
                assert words in str(died.value)
        assert isinstance(died.value, gradwire.OperationError) and died.value.exit_code > 0
        client.close()


def test_what_was_closed_says_so(one: Client) -> None:
    tensor = one.declare(1, 1000)
    kept = one.empty(1000)
    kept[:] = 3
    handle = one.push(tensor, kept)
    handle.wait()
    one.close()
    one.close()
    for call in [
        lambda: one.push(tensor, ONES),
        lambda: one.pull(tensor),
        lambda: one.declare(2, 3),
        lambda: one.barrier(),
    ]:
        with pytest.raises(gradwire.ClosedError):
            call()
    assert handle.wait() is None and handle.version == 1
    # Its arrays are arrays still, also once it is gone.
    del one, tensor
    gc.collect()
    kept += 1
    assert (kept == 4).all()


def test_closing_ends_what_is_under_way() -> None:
    with gradwire.launch(workers=2) as cluster:
        clients = together([lambda rank=rank: cluster.connect(node__rank=rank) for rank in range(2)])
        tensors = together([lambda c=client: c.declare(1, 1000) for client in clients])
        told: list[Any] = []
        handles = [clients[0].push_pull(tensors[0], ONES) for _ in range(3)]
        for handle in handles:
            handle.add_done_callback(lambda handle: told.append(handle.version))
        # From a callback, too: on the thread that calls back.
        handles[0].add_done_callback(lambda _: clients[0].close())
        clients[0].close()
        assert told == [None] * 3
        with pytest.raises(gradwire.ClosedError):
            handles[0].wait()
        clients[1].close()


def test_a_callback_may_close_its_client(one: Client) -> None:
    tensor = one.declare(1, 1000)
    closed = []

    def close(handle: gradwire.Handle) -> None:
        one.close()
        closed.append(handle.version)

    handle = one.push(tensor, ONES)
    handle.add_done_callback(close)
    handle.wait()
    until = time.monotonic() + PATIENCE_S
    while not closed and time.monotonic() < until:
        gc.collect()
    assert closed == [1]


def test_memory_of_the_library_comes_back(client: Client) -> None:
    tensor = client.declare(1, 1 << 20, optimizer=gradwire.Assign())
    gradient = np.ones(1 << 20, np.float32)
    # 8 GiB of pool and 4 MiB an array: this would end with PoolError.
    for turn in range(3000):
        array = client.empty(1 << 20)
        if turn % 50 == 0:
            array[:] = turn
            assert client.push_pull(tensor, array).wait()[5] == turn
            assert client.push_pull(tensor, gradient).wait()[5] == 1


def test_clients_come_and_go() -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def turn() -> None:
        with gradwire.launch() as cluster:
            client = cluster.connect()
            tensor = client.declare(1, 1000)
            client.push_pull(tensor, ONES, out=np.zeros(1000, np.float32)).wait()
            handle = client.push(tensor, client.empty(1000))
            handle.add_done_callback(lambda handle: None)
            handle.wait()
            # Not closed, only dropped.
            del client, tensor, handle

    turn()
    gc.collect()
    before = threads(), files()
    for _ in range(5):
        turn()
    gc.collect()
    assert (threads(), files()) == before


def shout(client: Client, words: str) -> tuple[int, str]:
    """For `run`."""
    tensor = client.declare("w", 3, optimizer=gradwire.Sum())
    client.push_pull(tensor, np.ones(3, np.float32)).wait()
    return client.rank, words.upper() + str(client.pull(tensor).wait()[0])


def fail_on_one(client: Client) -> None:
    """For `run`."""
    if client.rank == 1:
        raise ValueError("no luck")
    client.barrier()


def end_on_one(client: Client) -> None:
    """For `run`."""
    if client.rank == 1:
        os._exit(3)
    client.barrier()


def test_a_function_runs_on_every_worker() -> None:
    assert gradwire.launch(shout, "hi", servers=2, workers=3) == [(rank, "HI3.0") for rank in range(3)]
    with pytest.raises(gradwire.LaunchError) as failed:
        gradwire.launch(fail_on_one, workers=2)
    assert "no luck" in str(failed.value)
    with pytest.raises(gradwire.LaunchError) as ended:
        gradwire.launch(end_on_one, workers=2)
    assert "worker" in str(ended.value)


def test_a_cluster_that_cannot_start_says_why(tmp_path: Any) -> None:
    with pytest.raises(gradwire.LaunchError) as missing, gradwire.launch(programs=tmp_path):
        pass
    assert missing.value.code == "no_program" and str(tmp_path) in str(missing.value)
    with pytest.raises(gradwire.LaunchError) as wrong, gradwire.launch(deadlines__nonsense=1):
        pass
    assert "deadlines.nonsense" in str(wrong.value)


def test_a_cluster_leaves_nobody_behind() -> None:
    with gradwire.launch(servers=2) as cluster:
        processes = [cluster.process(name) for name in ("scheduler", "server-0", "server-1")]
        directory = cluster.directory
        assert all(process.poll() is None for process in processes) and "INFO" in cluster.log("scheduler")
    assert all(process.poll() is not None for process in processes) and not directory.exists()


def test_a_cluster_dies_with_a_killed_parent() -> None:
    script = "import gradwire, time\nwith gradwire.launch() as c:\n    print(c.process('server-0').pid, flush=True)\n    time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    pidfd = os.pidfd_open(server)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert select.select([pidfd], [], [], PATIENCE_S)[0], "the server outlived its parent"
    os.close(pidfd)
    parent.stdout.close()


def test_a_cluster_outlives_the_thread_that_launched_it() -> None:
    cluster = gradwire.launch()
    together([cluster.__enter__])
    try:
        # The kernel has ended what was to end with the thread by the time that a new one joins.
        with cluster.connect() as client:
            tensor = client.declare(1, 1000, optimizer=gradwire.Assign())
            assert (client.push_pull(tensor, ONES).wait() == 1).all()
    finally:
        cluster.close()


def sleeping(client: Client, where: str) -> None:
    """For `Cluster.run`: tells who it is, and computes for ever."""
    with open(where + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.replace(where + ".part", where)
    threading.Event().wait(10 * PATIENCE_S)


def test_workers_die_with_a_killed_parent(tmp_path: Any) -> None:
    where = tmp_path / "pid"
    script = (
        f"import sys; sys.path[:0] = {[os.path.dirname(__file__), *sys.path]!r}\n"
        f"import gradwire, test_life\ngradwire.launch(test_life.sleeping, {str(where)!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    until = time.monotonic() + PATIENCE_S
    while not where.exists():
        assert time.monotonic() < until and parent.poll() is None, "the worker did not start"
        time.sleep(0.01)
    pidfd = os.pidfd_open(int(where.read_text()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert select.select([pidfd], [], [], PATIENCE_S)[0], "the worker outlived its parent"
    os.close(pidfd)


def test_an_error_that_was_typed_is_not_the_end_s() -> None:
    with gradwire.launch(workers=2) as cluster:

        def typed() -> subprocess.CompletedProcess[str]:
            lines = "import gradwire\nclient = gradwire.connect()\ntensor = client.declare(1, 1000)\n1 / 0\n"
            words = [sys.executable, "-i", "-q"]
            env = cluster.environ(0)
            return subprocess.run(words, input=lines, env=env, capture_output=True, text=True, timeout=PATIENCE_S)

        done, client = together([typed, lambda: _declared(cluster)])
        assert "ZeroDivisionError" in done.stderr
        try:
            client.barrier("end")
        except gradwire.Error as error:
            assert "ZeroDivisionError" not in str(error)
        assert "ZeroDivisionError" not in str(client.dead)
        client.close()


ASKED = """
class Asked(np.ndarray):
    def __getattr__(self, name):
        # What a program may do when it is asked for something, among it what we are doing.
        if name == "_use_count":
            told.append(name)
            thread = threading.Thread(target=lambda: client.push(tensor, np.ones(1000, np.float32)).wait())
            thread.start()
            thread.join()
        raise AttributeError(name)

told = []
client = gradwire.connect()
tensor = client.declare(1, 1000, optimizer=gradwire.Sum())
mine = Asked((1000,), np.float32)
client.push(tensor, mine).wait()
del mine
client.stats()
assert told
client.close()
print("ended")
"""


def test_what_an_array_does_when_it_is_asked_locks_nobody_out() -> None:
    with gradwire.launch() as cluster:
        done = run(cluster, ASKED)
        assert done.stdout == "ended\n", done.stderr


def test_an_operation_that_does_not_begin_leaves_the_view_to_the_next(one: Client) -> None:
    tensor = one.declare(1, 1000, optimizer=gradwire.Assign())
    out = np.zeros(1000, np.float32)
    with gradwire.launch() as cluster, cluster.connect() as other:
        for begin in [lambda: other.pull(tensor, out=out), lambda: other.push_pull(tensor, ONES, out=out)]:
            with pytest.raises(gradwire.InputError):
                begin()
    one.push_pull(tensor, ONES, out=out).wait()
    assert one.stats()["shown_bytes"] == 4000, "the weights were not copied from where servers have them"


@pytest.mark.parametrize("kind", ["nothing", "another", "early"])
def test_nobody_waits_for_a_worker_that_left_before_it_declared(kind: str) -> None:
    with gradwire.launch(workers=2) as cluster:
        left = threading.Event()

        def leaves() -> None:
            with cluster.connect(node__rank=0) as client:
                if kind == "another":
                    client.init(client.declare("v", 4), np.zeros(4, np.float32))
            left.set()

        def stays() -> tuple[list[float], float]:
            with cluster.connect(node__rank=1) as client:
                if kind == "early":
                    assert left.wait(PATIENCE_S)
                started = time.monotonic()
                tensor = client.declare("w", 4)
                client.init(tensor, np.full(4, 2, np.float32))
                first = client.pull(tensor).wait().tolist()
                client.push_pull(tensor, np.ones(4, np.float32)).wait()
                return first, time.monotonic() - started

        first, took = together([leaves, stays])[1]
        assert first == [2.0] * 4, "the value of the worker that is left"
        assert took < 15, "less than any deadline"
