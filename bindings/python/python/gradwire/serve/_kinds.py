"""The optimizer classes that an operator's file registers, by framework and name."""

from __future__ import annotations

from typing import Any

from ..errors import InputError

#: The base classes of optimizers: the framework of the modules that they are in.
_BASES = {"mxnet": "mxnet.optimizer", "torch": "torch.optim"}
_kinds: dict[tuple[str, str], type[Any]] = {}


def framework_of(kind: type[Any]) -> str | None:
    """The framework of an optimizer class: "mxnet", "torch" or None."""
    for base in kind.__mro__:
        for framework, module in _BASES.items():
            if base.__name__ == "Optimizer" and base.__module__.startswith(module):
                return framework
    return None


def register(*kinds: type[Any]) -> None:
    """Lets workers name these optimizer classes of MXNet or torch. A server makes one without arguments (torch: with the parameters), and
    sets what the worker's has."""
    for kind in kinds:
        framework = framework_of(kind) if isinstance(kind, type) else None
        if framework is None:
            raise InputError(f"gradwire.serve.register: {kind!r} is no optimizer class of MXNet or torch", "optimizer")
        _kinds[framework, kind.__name__] = kind


def find(framework: str, name: str) -> type[Any]:
    """The class of that name."""
    kind = _kinds.get((framework, name))
    if kind is None:
        known = ", ".join(sorted(one for of, one in _kinds if of == framework)) or "none"
        raise InputError(
            f"these servers have no {framework} optimizer {name} (they have: {known}): register it in the file of `gradwire serve --updates`",
            "optimizer",
        )
    return kind


def frameworks() -> set[str]:
    """The frameworks of all of them."""
    return {framework for framework, _ in _kinds}


def names() -> list[str]:
    """All of them, for people."""
    return sorted(f"{framework}'s {name}" for framework, name in _kinds)
