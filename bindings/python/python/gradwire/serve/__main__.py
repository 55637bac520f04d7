"""`python -m gradwire.serve --updates my_rules.py`: a server of a job that updates parameters by optimizers of MXNet or torch."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from pathlib import Path

from .. import _native
from . import _kinds
from ._frames import APP, MARK
from ._handler import Updates

_USAGE = 78


def main(words: list[str]) -> int:
    """Serves until the job ends; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="gradwire serve",
        description="Runs a server of a job, as gradwire-server does, which also updates parameters by optimizers of MXNet or torch that a "
        "Python file registers. Only start files that you trust: they are executed. All servers of a job must run the same file.",
        epilog="All other arguments are those of gradwire-server: see gradwire-server --help.",
    )
    parser.add_argument("--updates", metavar="FILE", required=True, help="Python file that calls gradwire.serve.register with optimizer classes")
    parser.add_argument(
        "--state", metavar="DIR", type=Path, help="directory for the parameters and optimizer states; a job that starts again continues with them"
    )
    parser.add_argument("--every", metavar="SECONDS", type=float, default=60.0, help="how often they are written (default 60)")
    own, rest = parser.parse_known_args(words)
    # With this variable, MXNet would become a server of its own when it is imported.
    role = os.environ.pop("DMLC_ROLE", None)
    path = Path(own.updates)
    if not path.is_file():
        print(f"gradwire serve: cannot read {path}: name an existing Python file with --updates", file=sys.stderr)
        return _USAGE
    # The file may import modules beside it.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        runpy.run_path(str(path), run_name="__gradwire_updates__")
    # The operator's code may raise anything, and a service manager must not restart it for that.
    except Exception:  # pylint: disable=broad-exception-caught
        traceback.print_exc()
        print(f"gradwire serve: {path} raised the exception above: correct the file", file=sys.stderr)
        return _USAGE
    if role is not None:
        os.environ["DMLC_ROLE"] = role
    if not _kinds.names():
        print(f"gradwire serve: {own.updates} registers no optimizer: call gradwire.serve.register in it", file=sys.stderr)
        return _USAGE
    print(f"gradwire serve: workers may use {', '.join(_kinds.names())}", file=sys.stderr, flush=True)
    handler = Updates(own.state, own.every)
    code = _native.serve(["gradwire-server", *rest], MARK, APP, handler)
    handler.end()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
