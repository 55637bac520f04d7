"""Gradwire's errors as TensorFlow's: which class of `tf.errors` each becomes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from ..errors import (
    ClosedError,
    ConnectError,
    DeadlineError,
    DeclareError,
    Error,
    ForkError,
    InputError,
    MemberDiedError,
    OperationError,
    PoolError,
    SettingError,
)

# The first class that fits counts.
_CLASSES = (
    (InputError, tf.errors.InvalidArgumentError),
    (DeclareError, tf.errors.InvalidArgumentError),
    (SettingError, tf.errors.InvalidArgumentError),
    (MemberDiedError, tf.errors.UnavailableError),
    (ConnectError, tf.errors.UnavailableError),
    (DeadlineError, tf.errors.DeadlineExceededError),
    (PoolError, tf.errors.ResourceExhaustedError),
    (ClosedError, tf.errors.FailedPreconditionError),
    (ForkError, tf.errors.FailedPreconditionError),
    (OperationError, tf.errors.AbortedError),
)


@contextmanager
def as_tensorflow_errors() -> Iterator[None]:
    """Raises errors of Gradwire as the matching `tf.errors`, with the same text. The original error is the cause."""
    try:
        yield
    except Error as error:
        of = next((one for kind, one in _CLASSES if isinstance(error, kind)), tf.errors.UnknownError)
        raise of(None, None, str(error)) from error
