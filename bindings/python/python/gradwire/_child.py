"""A worker process of `Cluster.run`: reads the call from a file, joins the cluster, and writes the result to another file.
The parent process owns both files."""

from __future__ import annotations

import ctypes
import os
import pickle
import runpy
import signal
import sys
import traceback
import types
from pathlib import Path

from .client import connect
from .launching import PARENT_VARIABLE, SCRIPT_NAME

_SET_DEATH_SIGNAL = 1


def main(given: str, result: str) -> int:
    """Runs the call, and returns the exit code."""
    _die_with_parent()
    try:
        path, script, call = pickle.loads(Path(given).read_bytes())
        sys.path[:] = path
        if script is not None:
            _be(script)
        function, args = pickle.loads(call)
        with connect() as client:
            told = (True, function(client, *args))
    except Exception:
        told = (False, traceback.format_exc())
    whole = Path(result + ".part")
    whole.write_bytes(pickle.dumps(told))
    os.replace(whole, result)
    return 0 if told[0] else 1


def _be(script: str) -> None:
    """Makes the definitions of the parent's script available here under the same module name, without running its main part."""
    here = types.ModuleType(SCRIPT_NAME)
    sys.modules["__main__"] = sys.modules[SCRIPT_NAME] = here
    here.__dict__.update(runpy.run_path(script, run_name=SCRIPT_NAME))
    # Read: from now on it may start clusters.
    here.__name__ = "__main__"


def _die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent exits; exits at once if the parent has already exited."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != int(parent):
            os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
