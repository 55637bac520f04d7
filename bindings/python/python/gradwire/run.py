"""`python -m gradwire.run script.py ARGS`: runs an unchanged script with Gradwire instead of MXNet's distributed key-value
stores ("dist_sync", "dist_async" and similar names), instead of the modules `byteps.torch`, `byteps.tensorflow` and
`byteps.keras`, and instead of `horovod.torch`, `horovod.tensorflow`, `horovod.tensorflow.keras` and `horovod.keras`.

With `DMLC_ROLE=server` or `DMLC_ROLE=scheduler` it runs Gradwire's program for that role instead, so that launchers which
start the same command for all roles need no change. With `--updates my_rules.py` before the script, the program of servers is
`gradwire serve`, which applies the optimizers of that file. `--state` and `--every` are passed to it, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import runpy
import sys

from .errors import LaunchError
from .launching import program

_PROGRAMS = {"server": "gradwire-server", "scheduler": "gradwire-scheduler"}

# Options of `gradwire serve`.
_SERVE = ("--updates", "--state", "--every")

# The packages `byteps` and `horovod`, whose modules are ours. A folder in the path, which processes that scripts start inherit.
_STAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_stand")


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The options for servers, each with its value, and the rest."""
    at = 0
    while words[at : at + 1] and words[at].partition("=")[0] in _SERVE:
        at += 1 if "=" in words[at] else 2
    return words[:at], words[at:]


def main(words: list[str]) -> int:
    """Runs a script: the first word is its path, the others are its arguments."""
    role = os.environ.get("DMLC_ROLE", "worker")
    of_servers, words = _split(words)
    if of_servers and role == "server":
        return importlib.import_module("gradwire.serve.__main__").main(of_servers)  # type: ignore[no-any-return]
    if role in _PROGRAMS:
        path = program(_PROGRAMS[role])
        os.execv(path, [path])
    if role != "worker":
        print(f"gradwire.run: unknown role {role!r}: set DMLC_ROLE to worker, server or scheduler", file=sys.stderr)
        return 2
    if not words:
        print("usage: python -m gradwire.run [--updates FILE [--state DIR] [--every SECONDS]] script.py [ARGS]", file=sys.stderr)
        return 2
    if importlib.util.find_spec("mxnet") is not None:
        importlib.import_module("gradwire.mxnet").redirect()
    script, sys.argv = words[0], words
    sys.path[:1] = [os.path.dirname(os.path.abspath(script)), _STAND]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_STAND, os.environ.get("PYTHONPATH")]))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LaunchError as error:
        print(f"gradwire.run: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
