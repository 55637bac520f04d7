"""Horovod's names: a script of its learns what one process learns, and each name does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from conftest import PATIENCE_S
from gradwire.launching import program
from test_byteps import reference

SCRIPT = Path(__file__).parent / "horovod_script.py"


def test_an_unchanged_script_learns_what_one_process_learns(tmp_path: Path) -> None:
    command = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", sys.executable, "-m", "gradwire.run", str(SCRIPT), str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Two processes import torch first.
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    left = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    expected = list(reference(left[0]["begun"], normalizes=False).parameters())
    for rank, one in enumerate(left):
        assert one["place"] == (rank, 2) and one["mean"] == 0.5, one
        for mine, its in zip(one["learned"], expected):
            torch.testing.assert_close(mine, its.detach(), rtol=1e-5, atol=1e-6)
    for mine, its in zip(left[0]["learned"], left[1]["learned"]):
        assert torch.equal(mine, its)
