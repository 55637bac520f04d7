"""Modules for frameworks that are not installed."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_an_import_without_tensorflow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gradwire.tensorflow")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match=r"pip install 'gradwire\[tensorflow\]'"):
        importlib.import_module("gradwire.tensorflow")
