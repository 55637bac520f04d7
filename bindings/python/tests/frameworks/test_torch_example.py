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
WITHIN_S = 400.0


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
