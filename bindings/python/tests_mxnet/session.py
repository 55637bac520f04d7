"""A worker that runs cases, all or those that are named, in one order on every rank:

    session.py RESULTS [NAME...]

It leaves what became of each in RESULTS/RANK.json; "-" for nowhere.
"""

import json
import sys
import time
import traceback
from pathlib import Path

import cases_models
import cases_optimizers
import cases_rows
import cases_values
import gradwire.mxnet
import mxnet as mx

MODULES = (cases_values, cases_optimizers, cases_rows, cases_models)


def cases():
    """The cases by name, in order."""
    found = {}
    for module in MODULES:
        found.update({name[5:]: case for name, case in vars(module).items() if name.startswith("case_")})
    return found


def main(results, names):
    client = gradwire.mxnet._connection.client()
    told = {}
    found = cases()
    for name in names or found:
        started = time.monotonic()
        try:
            found[name]()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
        outcome = told[name] or "well"
        print(f"{name}: {outcome} in {time.monotonic() - started:.2f} s", flush=True)
        # Nobody goes on while another is in a case: one that fails on one rank must not meet the next on the other.
        client.barrier(f"case {name}")
    mx.nd.waitall()
    if results != "-":
        (Path(results) / f"{client.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
