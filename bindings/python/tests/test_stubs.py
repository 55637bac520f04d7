"""What type checkers are told is what the module has."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import gradwire
from gradwire import _native

PACKAGE = Path(gradwire.__file__).parent
STUBS = ast.parse((PACKAGE / "_native.pyi").read_text())
WITHOUT_MYPY = importlib.util.find_spec("mypy") is None


def public(names: object) -> set[str]:
    # What begins with one underscore is between the two halves of the package, and is told, too.
    return {name for name in names if not name.startswith("__")}  # type: ignore[attr-defined]


def test_every_name_of_the_module_has_a_stub_and_the_other_way_round() -> None:
    told = {node.name for node in STUBS.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert told == public(vars(_native)) - {"_native"}
    for node in STUBS.body:
        if isinstance(node, ast.ClassDef):
            members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
            assert public(members) == public(vars(getattr(_native, node.name))), node.name


def test_every_call_has_the_parameters_that_its_stub_tells() -> None:
    for node in STUBS.body:
        for function in [node] if isinstance(node, ast.FunctionDef) else getattr(node, "body", []):
            if not isinstance(function, ast.FunctionDef) or function.decorator_list or function.name.startswith("__"):
                continue
            owner = getattr(_native, node.name) if isinstance(node, ast.ClassDef) else _native
            told = [parameter.arg for parameter in [*function.args.args, *function.args.kwonlyargs]]
            real = list(inspect.signature(getattr(owner, function.name)).parameters)
            assert told == real, f"{node.name}.{function.name}"


def test_everything_public_is_documented() -> None:
    for name in gradwire.__all__:
        one = getattr(gradwire, name)
        assert name == "__version__" or inspect.getdoc(one), name
        for member, what in vars(one).items() if inspect.isclass(one) else []:
            if not member.startswith("_") and callable(what):
                assert inspect.getdoc(what), f"{name}.{member}"
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.skipif(WITHOUT_MYPY, reason="mypy is not there")
def test_stubs_and_package_satisfy_mypy(tmp_path: Path) -> None:
    def run(*words: str) -> None:
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    run("mypy.stubtest", "gradwire._native", "--ignore-disjoint-bases")
    run("mypy", "--strict", "--cache-dir", str(tmp_path), "-p", "gradwire", "--exclude", "torch|jax|mxnet|tensorflow|keras")


def test_the_settings_that_connect_takes_are_told() -> None:
    reference = {name: (variable, default) for name, variable, default in gradwire.settings_reference()}
    assert reference["deadlines.operation_ms"] == ("GRADWIRE_DEADLINES__OPERATION_MS", "30000")
    assert gradwire.__version__
