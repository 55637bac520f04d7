"""Scripts that torchrun starts, beside a cluster that `gradwire launch -n 0` provides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PATIENCE_S
from gradwire.launching import PROGRAMS_VARIABLE, _clean_environ, program
from gradwire.torch import _torchrun

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


def torchrun(script: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *words, str(script)],
        env={**environ(), PROGRAMS_VARIABLE: os.path.dirname(program("gradwire-scheduler")), "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def environ() -> dict[str, str]:
    return {name: value for name, value in _clean_environ().items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}


def test_ranks_are_those_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = [program("gradwire"), "launch", "-n", "0", "-s", "2", "--set", "cluster.workers=2"]
    # The default port may be another test's.
    cluster = subprocess.Popen(
        [*launch, "--scheduler-port", str(_free_port())], env=environ(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        assert cluster.stderr is not None
        line = next(line for line in cluster.stderr if "for workers with " in line)
        named = dict(pair.split("=", 1) for pair in line.split("for workers with ")[1].split())
        done = torchrun(script, "--standalone", GRADWIRE_SCHEDULER__PORT=named["GRADWIRE_SCHEDULER__PORT"])
        assert done.returncode == 0, done.stderr[-4000:]
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2 mean 0.5" for rank in range(2)], done.stdout
        cluster.communicate(timeout=PATIENCE_S)
        assert cluster.returncode == 0, "it ends with its workers"
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(PATIENCE_S)


# The usual port may be that of another test's scheduler.
ALONE = """
from gradwire.torch import _torchrun
import os
_torchrun.PORT = int(os.environ["FREE_PORT"])
"""

LATER = """
if gw.rank() == 1:
    # Rank 0 takes no part, so this ends when rank 0 has left.
    print("later", gw.push_pull(torch.tensor([7.0]), name="later").item(), flush=True)
"""

FAILS_ONCE = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == os.environ["FAILS"]:
        os._exit(3)
    gw.push_pull(torch.ones(1), name="never")
"""


def test_without_a_cluster_rank_0_starts_one_that_ends_after_the_last_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # Rank 1 still needs the cluster when rank 0 has ended.
    script.write_text(ALONE + SCRIPT + LATER)
    done = torchrun(script, "--master-port", str(_free_port()), FREE_PORT=str(_free_port()), GRADWIRE_CLUSTER__SERVERS="2")
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(done.stdout.splitlines()) == ["later 7.0"] + [f"rank {rank} of 2 mean 0.5" for rank in range(2)], done.stdout
    assert "rank 0 has started a cluster for this job, a scheduler at 127.0.0.1:" in done.stderr


@pytest.mark.parametrize("fails", ["0", "1"])
def test_a_restart_by_torchrun_begins_a_new_cluster(tmp_path: Path, fails: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALONE + SCRIPT + FAILS_ONCE + 'print("ended", gw.rank(), flush=True)')
    words = ["--master-port", str(_free_port()), "--max-restarts", "1", "--monitor-interval", "0.1"]
    done = torchrun(script, *words, FREE_PORT=str(_free_port()), FAILS=fails)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(line for line in done.stdout.splitlines() if "ended" in line) == ["ended 0", "ended 1"], done.stdout
    assert done.stderr.count("rank 0 has started a cluster") == 2, done.stderr[-4000:]


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
    for name in [*_torchrun.OWN_RANKS, *_torchrun.OWN_HOSTS]:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**TORCHRUN, **more}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert _torchrun.settings(given) == taken
