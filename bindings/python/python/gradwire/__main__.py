"""`python -m gradwire` is the command `gradwire`, also where the directory of its program is not in PATH."""

from __future__ import annotations

import os
import sys

from .errors import LaunchError
from .launching import program


def main() -> None:
    """Becomes the program; returns never."""
    try:
        path = program("gradwire")
    except LaunchError as error:
        sys.exit(f"gradwire: {error}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
