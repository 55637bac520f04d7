"""Starts a cluster on this machine: the scheduler and the servers run as separate processes; workers run in this process or
in new ones. For several machines use `gradwire launch`."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .client import Client, _given, connect
from .errors import LaunchError

#: Names the directory of the programs, before the installed ones and PATH.
PROGRAMS_VARIABLE = "GRADWIRE_PROGRAMS"
#: Names the process without which a program of a cluster ends.
PARENT_VARIABLE = "GRADWIRE_DIE_WITH_PARENT"
#: What `__name__` is in a script while a worker reads it.
SCRIPT_NAME = "__gradwire_worker__"
_PORTS_WITHIN_S = 30.0
_END_WITHIN_S = 10.0
# Bound on one poll of a file that is about to appear.
_POLL_S = 0.01


class Cluster:
    """A scheduler and servers that run until the `with` block ends. `connect` joins the cluster from this process; `run` joins
    it from new processes."""

    def __init__(
        self, servers: int, workers: int, settings: Mapping[str, Any], programs: str | os.PathLike[str] | None
    ) -> None:
        self.servers, self.workers = servers, workers
        self._settings = dict(settings)
        self._programs = programs
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self.scheduler = ""
        self.http = ""

    def __enter__(self) -> Cluster:
        if sys.modules["__main__"].__name__ == SCRIPT_NAME:
            raise LaunchError(
                "a worker imported this script, which would start another cluster: put the code that starts a cluster below "
                'if __name__ == "__main__"',
                "not_main",
            )
        self._directory = tempfile.TemporaryDirectory(prefix="gradwire-")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The directory with the logs of the processes while the cluster runs: scheduler.log, server-0.log, …"""
        if self._directory is None:
            raise LaunchError("the cluster is not running", "not_running")
        return Path(self._directory.name)

    def environ(self, rank: int | None = None) -> dict[str, str]:
        """Returns the environment variables for a worker process of this cluster."""
        environ = _clean_environ()
        host, _, port = self.scheduler.rpartition(":")
        environ["GRADWIRE_SCHEDULER__HOST"], environ["GRADWIRE_SCHEDULER__PORT"] = host, port
        for name, value in _given(self._settings):
            environ["GRADWIRE_" + name.replace(".", "__").upper()] = value
        if rank is not None:
            environ["GRADWIRE_NODE__RANK"] = str(rank)
        return environ

    def connect(self, **settings: Any) -> Client:
        """Joins the cluster as one of its workers. If the cluster has several workers, call it once per worker, each from its own
        thread."""
        return connect(**{**self._settings, "scheduler": self.scheduler, **settings})

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 600.0) -> list[Any]:
        """Calls `function(client, *args)` in one new process per worker, each with its own client, and returns the results by
        rank. The function must be defined in a module or in the running script; a script must start clusters only below
        `if __name__ == "__main__"`. Arguments and results are pickled, between these processes only. If one process fails,
        all are ended."""
        call = pickle.dumps((list(sys.path), _script_of(function), pickle.dumps((function, args))))
        deadline = time.monotonic() + timeout_s
        workers: list[tuple[subprocess.Popen[bytes], Path, Path]] = []
        command = [sys.executable, "-m", "gradwire._child"]
        try:
            for rank in range(self.workers):
                given, result = self.directory / f"call-{rank}", self.directory / f"result-{rank}"
                given.write_bytes(call)
                environ = {**self.environ(rank), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
                environ[PARENT_VARIABLE] = str(os.getpid())
                workers.append((_spawn([*command, str(given), str(result)], env=environ), given, result))
            return [_result(rank, *worker, deadline) for rank, worker in enumerate(workers)]
        finally:
            for process, given, result in workers:
                _end(process, signal.SIGTERM)
                given.unlink(missing_ok=True)
                result.unlink(missing_ok=True)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """Returns a process of the cluster by its name: "scheduler", "server-0", …"""
        return dict(self._processes)[name]

    def log(self, name: str) -> str:
        """Returns the log of a process of the cluster."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def wait(self, timeout_s: float) -> bool:
        """Waits until the job has ended, which it does when all workers have left. Returns whether it has."""
        try:
            self.process("scheduler").wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Ends all processes of the cluster. A second call does nothing."""
        for _, process in self._processes:
            if process.poll() is None:
                process.terminate()
        for _, process in self._processes:
            _end(process, signal.SIGTERM)
        self._processes.clear()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def _start(self) -> None:
        ports = self.directory / "ports"
        shape = ["--servers", str(self.servers), "--workers", str(self.workers)]
        scheduler = self._spawn("scheduler", [*shape, "--scheduler", "127.0.0.1:0", "--port-file", str(ports)])
        text = _appears(ports, scheduler, lambda: self.log("scheduler"))
        lines = dict(line.split("=", 1) for line in text.split() if "=" in line)
        self.scheduler, self.http = lines["control"], lines.get("http", "")
        for rank in range(self.servers):
            self._spawn("server", ["--scheduler", self.scheduler, "--rank", str(rank)], f"server-{rank}")

    def _spawn(self, role: str, words: list[str], name: str | None = None) -> subprocess.Popen[bytes]:
        name = name or role
        settings = [word for pair in _given(self._settings) for word in ("--set", "=".join(pair))]
        environ = {**_clean_environ(), PARENT_VARIABLE: str(os.getpid())}
        command = [program(f"gradwire-{role}", self._programs), *words, *settings]
        with open(self.directory / f"{name}.log", "wb") as log:
            process = _spawn(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append((name, process))
        return process


def launch(
    function: Callable[..., Any] | None = None,
    *args: Any,
    servers: int = 1,
    workers: int = 1,
    programs: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Any:
    """Starts a cluster on this machine. With a function, calls `function(client, *args)` in `workers` new processes and returns
    their results by rank. Without a function, returns a `Cluster`, a context manager. `settings` are the settings of all
    members, written as for `connect`. `programs` is the directory of gradwire-scheduler and gradwire-server; the default is
    GRADWIRE_PROGRAMS, then the programs of the installed wheel, then PATH.

        with gradwire.launch(servers=2) as started, started.connect() as client:
            ...
    """
    cluster = Cluster(servers, workers, settings, programs)
    if function is None:
        return cluster
    with cluster:
        return cluster.run(function, *args)


def program(name: str, programs: str | os.PathLike[str] | None = None) -> str:
    """The path of one of Gradwire's programs: in `programs`, else in the directory that GRADWIRE_PROGRAMS names, else the
    one that was installed with this package, else the first in PATH."""
    named = programs or os.environ.get(PROGRAMS_VARIABLE)
    found = shutil.which(name, path=os.fspath(named)) if named else _installed(name) or shutil.which(name)
    if found is None:
        where = f"in {named}" if named else "beside this package or in PATH"
        raise LaunchError(
            f"there is no {name} {where}; install a wheel that has the programs (`make package`), or build them with "
            f"`cargo build --release --bins` and set {PROGRAMS_VARIABLE} to their directory",
            "no_program",
        )
    return found


def _installed(name: str) -> str | None:
    """The program that came with the wheel. The list of installed files names it; `pip install --target` writes a list that is
    wrong about programs, and puts them into the directory `bin` beside the package."""
    try:
        files = importlib.metadata.distribution("gradwire").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [str(file.locate()) for file in files if file.name == name]
    paths.append(os.path.join(os.path.dirname(os.path.dirname(__file__)), "bin", name))
    return next((os.path.abspath(path) for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def _script_of(function: Callable[..., Any]) -> str | None:
    """The file that runs as `__main__`, if the function is defined in it: a worker must import it first."""
    main = sys.modules["__main__"]
    file: str | None = getattr(main, "__file__", None)
    if function.__module__ != "__main__" or not file or not os.path.isfile(file):
        return None
    # What workers return may be of a class of the script's.
    sys.modules[SCRIPT_NAME] = main
    return os.path.abspath(file)


_Order = tuple["Future[subprocess.Popen[bytes]]", tuple[Any, ...], dict[str, Any]]
_orders: queue.SimpleQueue[_Order] | None = None
_orders_lock = threading.Lock()


def _spawn(*args: Any, **words: Any) -> subprocess.Popen[bytes]:
    """Starts a process from a thread that ends with this process only: the kernel ends what dies with its parent when the
    *thread* ends that started it, which may be the caller's at any time."""
    global _orders
    with _orders_lock:
        if _orders is None:
            _orders = queue.SimpleQueue()
            threading.Thread(target=_start_what_is_ordered, args=(_orders,), name="gradwire-spawn", daemon=True).start()
        orders = _orders
    started: Future[subprocess.Popen[bytes]] = Future()
    orders.put((started, args, words))
    return started.result()


def _start_what_is_ordered(orders: queue.SimpleQueue[_Order]) -> None:
    while True:
        started, args, words = orders.get()
        try:
            started.set_result(_popen(args, words))
        except BaseException as error:
            started.set_exception(error)
        del started


def _popen(args: tuple[Any, ...], words: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(*args, **words)


def _forget_orders() -> None:
    """In a forked child, which has no such thread, and may have the lock locked."""
    global _orders, _orders_lock
    _orders, _orders_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_orders)


def _clean_environ() -> dict[str, str]:
    """The environment without variables of another cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GRADWIRE_", "DMLC_"))}


def _appears(file: Path, writer: subprocess.Popen[bytes], log: Callable[[], str]) -> str:
    deadline = time.monotonic() + _PORTS_WITHIN_S
    while time.monotonic() < deadline:
        if file.exists():
            return file.read_text()
        try:
            writer.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        raise LaunchError(f"the scheduler exited with code {writer.returncode}: {log()[-2000:]}", "scheduler_ended")
    raise LaunchError(f"the scheduler did not report its port within {_PORTS_WITHIN_S:.0f} s: {log()[-2000:]}", "no_port")


def _end(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(first)
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _result(rank: int, process: subprocess.Popen[bytes], given: Path, result: Path, deadline: float) -> Any:
    try:
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise LaunchError(f"worker {rank} timed out: raise timeout_s", "worker_late") from None
    if not result.exists():
        raise LaunchError(f"worker {rank} exited with code {code} and without a result", "worker_ended")
    ok, value = pickle.loads(result.read_bytes())
    if ok:
        return value
    raise LaunchError(f"worker {rank} failed: {value}", "worker_failed")
