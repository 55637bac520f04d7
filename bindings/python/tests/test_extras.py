"""Modules for frameworks that are not installed."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize("extra", ["torch", "tensorflow", "jax", "mxnet"])
def test_an_import_without_the_framework_names_the_extra(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(f"gradwire.{extra}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ImportError, match=rf"gradwire\.{extra} needs .*: pip install 'gradwire\[{extra}\]'"):
        importlib.import_module(f"gradwire.{extra}")
