"""What can go wrong: one hierarchy below `Error`. Each error has a `code` for programs (such as "round_deadline"), a text
that says cause and fix, and the `exit_code` that a program of Gradwire's would end with."""

from __future__ import annotations


class Error(Exception):
    """Anything that Gradwire raises."""

    code: str
    exit_code: int

    def __init__(self, text: str, code: str = "error", exit_code: int = 1) -> None:
        super().__init__(text)
        self.code = code
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[Error], tuple[str, str, int]]:
        return type(self), (str(self), self.code, self.exit_code)


class SettingError(Error, ValueError):
    """A setting is wrong, or unknown."""


class ConnectError(Error, ConnectionError):
    """The scheduler or a server cannot be reached, or refuses this process."""


class DeclareError(Error, ValueError):
    """A declaration was refused."""


class InputError(Error, ValueError):
    """An argument or array does not fit: its type, shape, layout or device."""


class PoolError(Error, MemoryError):
    """The registered memory is used up (memory.pool_bytes)."""


class OperationError(Error, RuntimeError):
    """An operation did not end well."""


class DeadlineError(OperationError, TimeoutError):
    """A deadline of the cluster is over; the text names who is missing."""


class WaitTimeout(Error, TimeoutError):
    """The `timeout` of a wait is over; the operation is still under way."""


class MemberDiedError(OperationError, ConnectionError):
    """A member of the cluster died, or the way to it broke."""


class ClosedError(OperationError):
    """The client was closed."""


class ForkError(Error, RuntimeError):
    """A process was forked from a connected one, and uses its parent's client."""


class LaunchError(Error, RuntimeError):
    """A cluster could not be started here, or its function failed."""
