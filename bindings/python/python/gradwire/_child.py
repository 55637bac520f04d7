"""A worker's process of `Cluster.run`: reads the call from a file, joins, and leaves the result in another one. Both files
are the parent's own."""

from __future__ import annotations

import os
import pickle
import runpy
import sys
import traceback
import types
from pathlib import Path

from .client import connect
from .launching import SCRIPT_NAME


def main(given: str, result: str) -> int:
    """The exit code."""
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
    """What the parent's script defines is found here, too, under the name it has there; what it runs is not run."""
    here = types.ModuleType(SCRIPT_NAME)
    sys.modules["__main__"] = sys.modules[SCRIPT_NAME] = here
    here.__dict__.update(runpy.run_path(script, run_name=SCRIPT_NAME))
    # Read: from now on it may start clusters.
    here.__name__ = "__main__"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
