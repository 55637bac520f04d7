"""Clusters of real programs for MXNet's workers: processes that run `session.py` or a script, one for each rank.

The programs are those that GRADWIRE_PROGRAMS names.
"""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import gradwire

HERE = Path(__file__).parent
WITHIN_S = 240.0


def free_port():
    """A port below those that the system gives to connections by itself, where nobody listens."""
    for port in random.sample(range(16_000, 18_000), 2_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise RuntimeError("no port from 16000 to 18000 is free")


def run_workers(command, workers=2, servers=2, environ=(), **settings):
    """Runs a command as each of the workers; returns what each printed. All must end well."""
    path = os.pathsep.join(path for path in sys.path if path)
    settings.setdefault("deadlines__operation_ms", 20_000)
    with gradwire.launch(servers=servers, workers=workers, **settings) as cluster:
        processes = [
            subprocess.Popen(
                [sys.executable, *map(str, command)],
                env={**cluster.environ(rank), "PYTHONPATH": path, **dict(environ)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(workers)
        ]
        try:
            said = [process.communicate(timeout=WITHIN_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
        for rank, (process, (out, err)) in enumerate(zip(processes, said)):
            assert process.returncode == 0, f"worker {rank}: {process.returncode}\n{out[-2000:]}\n{err[-4000:]}"
    return [out for out, _ in said]


@pytest.fixture(scope="session")
def session(tmp_path_factory):
    """What became of each case in one cluster of two workers: by name, the failures of each rank."""
    results = tmp_path_factory.mktemp("session")
    run_workers([HERE / "session.py", results])
    ranks = [json.loads((results / f"{rank}.json").read_text()) for rank in range(2)]
    return {name: [rank.get(name, "was not run") for rank in ranks] for name in ranks[0]}
