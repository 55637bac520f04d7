"""Scripts that torchrun starts, beside a cluster that `gradwire launch -n 0` provides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed

from conftest import PATIENCE_S
from gradwire.launching import PROGRAMS_VARIABLE, _clean_environ, program
from gradwire.torch import _torchrun

SCRIPT = """
import os, sys
import gradwire.torch as gw
import torch
gw.init()
assert gw.rank() == int(os.environ["RANK"]) and gw.size() == int(os.environ["WORLD_SIZE"])
assert gw.local_rank() == int(os.environ["LOCAL_RANK"])
mean = gw.push_pull(torch.tensor([float(gw.rank())]), name="ranks")
# In one write: torchrun's processes share a pipe, and their buffers are off.
sys.stdout.write(f"rank {gw.rank()} of {gw.size()} mean {mean.item()}\\n")
"""


def torchrun(script: Path, *words: str, restarts: int = 0, **variables: str) -> tuple[int, str, str]:
    """The exit code, and what two processes of torchrun print."""
    path = os.pathsep.join(path for path in sys.path if path)
    env = {**environ(), PROGRAMS_VARIABLE: os.path.dirname(program("gradwire-scheduler")), "PYTHONPATH": path, **variables}
    if torch.__version__.startswith("1."):
        return stand_in(script, restarts, env)
    rest = ["--master_port", str(_free_port()), "--max_restarts", str(restarts), "--monitor_interval", "0.1", *words, str(script)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", *rest]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, done.stdout, done.stderr


def stand_in(script: Path, restarts: int, env: dict[str, str]) -> tuple[int, str, str]:
    """What torchrun does for its processes. Debian's own cannot start any."""
    store = torch.distributed.TCPStore("127.0.0.1", _free_port(), is_master=True, wait_for_workers=False)
    said = ["", ""]
    for attempt in range(restarts + 1):
        common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        processes = [
            subprocess.Popen(
                [sys.executable, "-u", str(script)],
                env={**env, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        # One that fails is the end of the other as well.
        for process in processes:
            out, error = process.communicate(timeout=PATIENCE_S)
            said = [said[0] + out, said[1] + error]
        if not any(process.returncode for process in processes):
            return 0, said[0], said[1]
    return 1, said[0], said[1]


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
        code, out, error = torchrun(script, "--standalone", GRADWIRE_SCHEDULER__PORT=named["GRADWIRE_SCHEDULER__PORT"])
        assert code == 0, error[-4000:]
        assert sorted(out.splitlines()) == [f"rank {rank} of 2 mean 0.5" for rank in range(2)], out
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
    sys.stdout.write(f'later {gw.push_pull(torch.tensor([7.0]), name="later").item()}\\n')
"""

ENDED = """
sys.stdout.write(f"ended {gw.rank()}\\n")
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
    code, out, error = torchrun(script, FREE_PORT=str(_free_port()), GRADWIRE_CLUSTER__SERVERS="2")
    assert code == 0, error[-4000:]
    assert sorted(out.splitlines()) == ["later 7.0"] + [f"rank {rank} of 2 mean 0.5" for rank in range(2)], out
    assert "rank 0 has started a cluster for this job, a scheduler at 127.0.0.1:" in error


@pytest.mark.parametrize("fails", ["0", "1"])
def test_a_restart_by_torchrun_begins_a_new_cluster(tmp_path: Path, fails: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(ALONE + SCRIPT + FAILS_ONCE + ENDED)
    code, out, error = torchrun(script, restarts=1, FREE_PORT=str(_free_port()), FAILS=fails)
    assert code == 0, error[-4000:]
    assert sorted(line for line in out.splitlines() if "ended" in line) == ["ended 0", "ended 1"], out
    assert error.count("rank 0 has started a cluster") == 2, error[-4000:]


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
