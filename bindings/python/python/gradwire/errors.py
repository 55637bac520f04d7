"""The exceptions of Gradwire, all subclasses of `Error`. Each has a `code` for programs (such as "round_deadline"), a text
with cause and fix, and the `exit_code` with which Gradwire's own programs exit for this error."""

from __future__ import annotations


class Error(Exception):
    """The base class of all exceptions of Gradwire."""

    code: str
    exit_code: int

    def __init__(self, text: str, code: str = "error", exit_code: int = 1) -> None:
        super().__init__(text)
        self.code = code
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[Error], tuple[str, str, int]]:
        return type(self), (str(self), self.code, self.exit_code)


class SettingError(Error, ValueError):
    """A setting is invalid or unknown."""


class ConnectError(Error, ConnectionError):
    """The scheduler or a server cannot be reached, or rejected this process."""


class DeclareError(Error, ValueError):
    """A declaration was rejected."""


class InputError(Error, ValueError):
    """An argument is invalid, or an array has the wrong type, shape, layout or device."""


class PoolError(Error, MemoryError):
    """The registered memory is used up (memory.pool_bytes)."""


class OperationError(Error, RuntimeError):
    """An operation failed."""


class DeadlineError(OperationError, TimeoutError):
    """A deadline of the cluster passed; the text names the missing members and the setting."""


class WaitTimeout(Error, TimeoutError):
    """The `timeout` of a `wait` passed; the operation continues."""


class MemberDiedError(OperationError, ConnectionError):
    """A member of the cluster failed, or the connection to it broke."""


class ClosedError(OperationError):
    """The client was closed."""


class ForkError(Error, RuntimeError):
    """A forked process used the client of its parent process."""


class LaunchError(Error, RuntimeError):
    """A cluster could not be started on this machine, or its function failed."""
