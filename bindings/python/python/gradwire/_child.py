"""A worker's process of `Cluster.run`: reads the call from a file, joins, and leaves the result in another one. Both files
are the parent's own."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

from .client import connect


def main(given: str, result: str) -> int:
    """The exit code."""
    try:
        function, args, path = pickle.loads(Path(given).read_bytes())
        sys.path[:] = path
        with connect() as client:
            told = (True, function(client, *args))
    except Exception:
        told = (False, traceback.format_exc())
    whole = Path(result + ".part")
    whole.write_bytes(pickle.dumps(told))
    os.replace(whole, result)
    return 0 if told[0] else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
