"""Checkpoints as other tools see them: parts are files that Python's safetensors reads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from safetensors import safe_open

import gradwire


def test_safetensors_reads_the_parts(tmp_path: Path) -> None:
    settings = {"checkpoint__directory": str(tmp_path), "checkpoint__every_rounds": 2}
    gradient = np.arange(3000, dtype=np.float32) / 8
    with gradwire.launch(servers=2, cluster__chunk_bytes=4096, **settings) as cluster:
        with cluster.connect() as client:
            tensor = client.declare("layer.0/weight", (30, 100), np.float32, gradwire.Sum())
            client.init(tensor, np.zeros((30, 100), np.float32))
            # It is written behind training, which goes on until the first one is complete.
            deadline = time.monotonic() + 30
            while not list(tmp_path.glob("round-*/manifest.json")) and time.monotonic() < deadline:
                client.push_pull(tensor, gradient.reshape(30, 100)).wait()
    newest = sorted(tmp_path.glob("round-*/manifest.json"))[-1]
    manifest = json.loads(newest.read_text())
    assert manifest["round"] % 2 == 0
    seen = np.zeros(3000, bool)
    for record in manifest["parts"]:
        with safe_open(newest.parent / record["file"], "numpy") as part:
            for name in part.keys():  # noqa: SIM118
                if name.split("[")[0] != "layer.0/weight":
                    continue
                begin, end = (int(place) for place in name.split("[")[1].rstrip("]").split(":"))
                assert not seen[begin:end].any()
                seen[begin:end] = True
                assert np.array_equal(part.get_tensor(name), manifest["round"] * gradient[begin:end])
    assert seen.all()
