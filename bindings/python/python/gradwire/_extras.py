"""Modules that need more than numpy: those of frameworks, which are extras of the package."""

from __future__ import annotations

import importlib


def require(ours: str, *modules: str, needs: str, extra: str) -> None:
    """Imports what one of our modules needs. If that is not installed, the error names the extra."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise ModuleNotFoundError(f"{ours} needs {needs}: pip install 'gradwire[{extra}]' ({error})", name=module) from error
