"""The paper's MLP in torch, over real daemons, by the command that its page gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gradwire.launching import program

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_mlp.py"
README = EXAMPLE.parents[3] / "examples" / "readme" / "torch_model.py"
WITHIN_S = 400.0


def test_the_readmes_model_is_the_same_on_both_workers() -> None:
    launch = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", "--"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, sys.executable, str(README)], capture_output=True, text=True, timeout=WITHIN_S, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = sorted(line[line.index("rank ") :] for line in (done.stdout + done.stderr).splitlines() if " loss " in line)
    assert [line.split(":")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"], done.stderr
    assert len({line.split()[-1] for line in lines}) == 1, "the same weights"
    # A guess costs ln 10 = 2.3.
    assert all(float(line.split("loss ")[1].split(",")[0]) < 1.0 for line in lines), lines


def told(command: list[str]) -> list[Any]:
    """What each process of a command tells in the end."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    # The launcher prints the first worker's lines as they are, and the others' beside its own.
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ended = subprocess.run(command, **both, text=True, timeout=WITHIN_S, env=environ)
    assert ended.returncode == 0, ended.stdout[-4000:]
    return [json.loads(line[line.index("{") :]) for line in ended.stdout.splitlines() if '"accuracy"' in line]


def test_two_workers_learn_what_one_process_learns() -> None:
    script = [sys.executable, str(EXAMPLE), "--epochs", "4", "--width", "256"]
    launch = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", "--"]
    first, second = sorted(told([*launch, *script]), key=lambda one: one["rank"])
    assert (first["accuracy"], first["loss"]) == (second["accuracy"], second["loss"])
    (alone,) = told([*script, "--alone", "2"])
    assert first["accuracy"] == alone["accuracy"] > 0.9
    assert abs(first["loss"] - alone["loss"]) < 1e-4


def test_it_is_the_papers_shape() -> None:
    launch = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", "--"]
    results = told([*launch, sys.executable, str(EXAMPLE), "--epochs", "2"])
    assert len(results) == 2 and all(one["accuracy"] > 0.8 for one in results), results
