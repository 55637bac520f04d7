"""Checkpoints as other tools see them: parts are files that Python's safetensors reads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
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
            while not list(tmp_path.glob("job-*/round-*/manifest.json")) and time.monotonic() < deadline:
                client.push_pull(tensor, gradient.reshape(30, 100)).wait()
    newest = sorted(tmp_path.glob("job-*/round-*/manifest.json"))[-1]
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


def test_a_script_asks_for_one_and_another_one_goes_on_from_it(tmp_path: Path) -> None:
    gradient = np.arange(3000, dtype=np.float32) / 8
    settings = {"cluster__chunk_bytes": 4096, "checkpoint__directory": str(tmp_path)}
    with gradwire.launch(servers=2, **settings) as cluster, cluster.connect() as client:
        tensor = client.declare("w", (3000,), np.float32, gradwire.Sum())
        client.init(tensor, np.zeros(3000, np.float32))
        for _ in range(3):
            client.push_pull(tensor, gradient).wait()
        name = client.checkpoint([tensor], timeout=30)
        assert client.checkpoint([tensor]) == name, "nothing has changed since"
        with pytest.raises(gradwire.InputError, match="seconds"):
            client.checkpoint([tensor], timeout=-1)
        client.push_pull(tensor, gradient).wait()
    assert (tmp_path / name / "manifest.json").exists()
    with gradwire.launch(servers=1, checkpoint__restore=name, **settings) as cluster, cluster.connect() as client:
        tensor = client.declare("w", (3000,), np.float32, gradwire.Sum())
        assert client.resume([tensor]) == 3
        assert np.array_equal(client.pull(tensor).wait(), 3 * gradient)
        # What the job began from is not written over.
        again = client.checkpoint([tensor], timeout=30)
        assert again != name
    assert all((tmp_path / one / "manifest.json").exists() for one in (name, again))
    with gradwire.launch() as cluster, cluster.connect() as client:
        tensor = client.declare("w", (3,), np.float32, gradwire.Sum())
        with pytest.raises(gradwire.Error, match="checkpoint.directory"):
            client.checkpoint([tensor])
