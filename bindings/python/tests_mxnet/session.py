"""A worker that runs all cases, in one order on every rank, and leaves what became of each in RESULTS/RANK.json."""

import json
import sys
import time
import traceback
from pathlib import Path

import cases_models
import cases_optimizers
import cases_values
import gradwire.mxnet
import mxnet as mx

MODULES = (cases_values, cases_optimizers, cases_models)


def cases():
    """The cases by name, in order."""
    found = {}
    for module in MODULES:
        found.update({name[5:]: case for name, case in vars(module).items() if name.startswith("case_")})
    return found


def main(results):
    client = gradwire.mxnet._connection.client()
    told = {}
    for name, case in cases().items():
        started = time.monotonic()
        try:
            case()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
        print(f"{name}: {time.monotonic() - started:.2f} s {told[name]}", flush=True)
        # Nobody goes on while another is in a case: one that fails on one rank must not meet the next on the other.
        client.barrier(f"case {name}")
    mx.nd.waitall()
    (Path(results) / f"{client.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
