"""The examples that need numpy alone, as people run them; and what they rest on: scripts whose functions are the workers'."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire.launching import program

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
README = EXAMPLES.parents[2] / "examples" / "readme"
WITHIN_S = 180.0


def run(script: Path, *words: object, fails: bool = False) -> tuple[list[str], str]:
    """What a script prints, line by line, and what it says of errors."""
    command = [sys.executable, str(script), *map(str, words)]
    # Workers share the machine's cores.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=environ)
    assert (ended.returncode != 0) == fails, ended.stderr[-4000:]
    return ended.stdout.splitlines(), ended.stderr


def told(name: str, *words: object) -> Any:
    """What an example's last line says."""
    return json.loads(run(EXAMPLES / name, *words)[0][-1])


def started(script: Path) -> list[str]:
    """What the two workers of a program of the README print, started as the README says."""
    command = [program("gradwire"), "launch", "--workers", "2", "--servers", "1", "--", sys.executable, str(script)]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(line[line.index("rank ") :] for line in (done.stdout + done.stderr).splitlines() if " loss " in line)


def test_the_readmes_table_is_learnt() -> None:
    lines = started(README / "embedding_table.py")
    assert [line.split(":")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
    # Rows begin near 0, where the loss is near 0.5, and are learnt towards 1.
    assert all(float(line.split()[-1]) < 0.2 for line in lines), lines


SCRIPT = """
import dataclasses, sys, gradwire

@dataclasses.dataclass
class Seen:
    rank: int
    name: str

def work(client, word):
    client.barrier()
    return Seen(client.rank, __name__ + word)

# In one piece: all write to one pipe.
sys.stdout.write(f"read by {__name__}\\n")
if __name__ == "__main__":
    results = gradwire.launch(work, "!", workers=2)
    assert all(type(result) is Seen for result in results), results
    print(results)
"""


def test_a_scripts_own_functions_run_in_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    lines, _ = run(script)
    assert sorted(lines[:-1]) == ["read by __gradwire_worker__"] * 2 + ["read by __main__"]
    assert lines[-1] == "[Seen(rank=0, name='__gradwire_worker__!'), Seen(rank=1, name='__gradwire_worker__!')]"


def test_a_script_that_would_start_clusters_in_its_workers_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace('__name__ == "__main__"', "True"))
    assert 'put the code that starts a cluster below if __name__ == "__main__"' in run(script, fails=True)[1]


@pytest.mark.parametrize("name", ["publish.py", "sparse_logistic.py", "embedding.py"])
def test_examples_say_what_they_are(name: str) -> None:
    lines, _ = run(EXAMPLES / name, "--help")
    assert lines[0].startswith("usage: ") and any("python " + name in line for line in lines)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_readers_see_whole_versions(transport: str) -> None:
    result = told("publish.py", "--versions", 40, "--every-ms", 10, "--readers", 2, "--transport", transport)
    assert result["placement"] == "static" and result["torn"] == 0
    # 8 chunks in each version, and where key buffers are taken a contribution goes another way.
    assert 300 <= result["chunks_placed"] <= 8 * 40 + 8 + 40 + 1, result
    # Everybody saw the last one, and the first reader to come saw more than that.
    assert len(result["seen"]) == 2 and min(result["seen"]) >= 2
    assert 0 <= result["lag_median"] <= result["lag_max"] <= 40


def test_torn_chunks_are_counted() -> None:
    torn_chunks = runpy.run_path(str(EXAMPLES / "publish.py"))["torn_chunks"]
    mine = np.array([1, 1, 2, 2, 3, 4], np.float32)
    assert [torn_chunks(mine, [1, 2, last]) for last in (3, 5)] == [1, 1]
    assert torn_chunks(mine[:4], [1, 2]) == 0 and torn_chunks(mine[:4], [2, 1]) == 2


def test_sparse_logistic_regression_comes_near_to_what_made_the_data() -> None:
    result = told("sparse_logistic.py", "--rows", 10_000, "--features", 1_000)
    assert result["held_out"] == 2_000
    assert result["auc_of_generator"] > result["auc"] > result["auc_of_generator"] - 0.04, result
    assert result["accuracy"] > result["accuracy_of_generator"] - 0.05, result
    # L1 keeps those away that do not matter.
    assert result["weights_not_0"] < 0.5, result


BAD_LINES = [
    ("1 3:1 x:2", "a feature is no whole number"),
    ("1 3:1 -4:2", "a feature is no whole number"),
    ("1 18446744073709551616:1", "a feature is no whole number"),
    ("2 3:1", "no label"),
    ("yes 3:1", "could not convert"),
    ("0 3", "could not convert"),
    ("0 3:nan", "not finite"),
]


def test_a_bad_line_is_told_by_its_number(tmp_path: Path) -> None:
    read = runpy.run_path(str(EXAMPLES / "sparse_logistic.py"))["read_libsvm"]
    data, good = tmp_path / "data.svm", "# a comment\n1 1:0.5 18446744073709551615:2 # another\n\n-1\n"
    data.write_text(good)
    assert [(label, ids.tolist(), values.tolist()) for label, ids, values in read(data)] == [
        (True, [1, (1 << 64) - 1], [0.5, 2.0]),
        (False, [], []),
    ]
    for line, why in BAD_LINES:
        data.write_text(f"{good}{line}\n1 1:1\n")
        with pytest.raises(ValueError, match=f"line 5: .*{why}"):
            read(data)
    _, errors = run(EXAMPLES / "sparse_logistic.py", "--data", data, "--workers", 1, fails=True)
    assert f"{data}, line 5: " in errors, errors[-2000:]


def test_word_vectors_are_learnt() -> None:
    result = told("embedding.py", "--epochs", 3)
    # A pair and 5 negatives cost 6 ln 2 = 4.16 before anything is learnt. How much the first epoch has learnt at its end depends on the
    # length of the project's pages, which are the text.
    assert result["last_loss"] < result["first_loss"] and result["last_loss"] < 0.6 * 4.16, result
    assert all(len(near) == 4 for near in result["neighbours"].values()) and len(result["neighbours"]) >= 3, result
