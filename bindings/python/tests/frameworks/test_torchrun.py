"""Scripts that torchrun starts, beside a cluster that `gradwire launch -n 0` provides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PATIENCE_S
from gradwire.launching import _clean_environ, program
from gradwire.torch import _process

SCRIPT = """
import os
import gradwire.torch as gw
import torch
gw.init()
assert gw.rank() == int(os.environ["RANK"]) and gw.size() == int(os.environ["WORLD_SIZE"])
assert gw.local_rank() == int(os.environ["LOCAL_RANK"])
mean = gw.push_pull(torch.tensor([float(gw.rank())]), name="ranks")
print("rank", gw.rank(), "of", gw.size(), "mean", mean.item(), flush=True)
"""


def test_ranks_are_those_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in _clean_environ().items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    path = os.pathsep.join(path for path in sys.path if path)
    launch = [program("gradwire"), "launch", "-n", "0", "-s", "2", "--set", "cluster.workers=2"]
    # The default port may be another test's.
    cluster = subprocess.Popen(
        [*launch, "--scheduler-port", str(_free_port())], env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        assert cluster.stderr is not None
        line = next(line for line in cluster.stderr if "for workers with " in line)
        named = dict(pair.split("=", 1) for pair in line.split("for workers with ")[1].split())
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
            env={**environ, "PYTHONPATH": path, "GRADWIRE_SCHEDULER__PORT": named["GRADWIRE_SCHEDULER__PORT"]},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2 mean 0.5" for rank in range(2)], done.stdout
        cluster.communicate(timeout=PATIENCE_S)
        assert cluster.returncode == 0, "it ends with its workers"
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(PATIENCE_S)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node-7"}


@pytest.mark.parametrize(
    "more, given, taken",
    [
        ({}, {}, {"node__rank": 3}),
        ({"LOCAL_WORLD_SIZE": "2"}, {}, {"node__rank": 3, "scheduler__host": "node-7"}),
        ({"LOCAL_WORLD_SIZE": "2"}, {"scheduler": "a:1"}, {"node__rank": 3}),
        ({"LOCAL_WORLD_SIZE": "2", "GRADWIRE_SCHEDULER__HOST": "b"}, {}, {"node__rank": 3}),
        ({"GRADWIRE_NODE__RANK": "0"}, {}, {}),
        ({"DMLC_WORKER_ID": "0"}, {}, {}),
        ({"RANK": "one"}, {}, {}),
        ({"MASTER_ADDR": None}, {}, {}),
    ],
)
def test_own_settings_precede_those_of_torchrun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, str | None], given: dict[str, str], taken: dict[str, object]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [*_process._OWN_RANKS, *_process._OWN_HOSTS]:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**TORCHRUN, **more}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert _process._of_torchrun(given) == taken
