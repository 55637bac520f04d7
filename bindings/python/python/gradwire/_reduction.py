"""How Horovod's scripts name what becomes of the tensors of all workers. It knows no framework."""

from __future__ import annotations

from typing import Any

from .errors import InputError


class Reduction:
    """How the tensors of all workers become one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


Average = Reduction("Average")
Sum = Reduction("Sum")


def is_average(average: bool | None, op: Any) -> bool:
    """What `average` and `op` of a script ask for; the default is the average."""
    if op is not None and op not in (Average, Sum):
        raise InputError(f"unsupported reduction {op!r}: use Average or Sum", "reduction")
    if average is not None and average not in (True, False):
        raise InputError(f"average is {average!r}: pass True for the average, False for the sum", "reduction")
    if op is not None and average is not None and average != (op is Average):
        raise InputError(f"average={average} contradicts op={op!r}: leave one out", "reduction")
    return op is not Sum if average is None else bool(average)
