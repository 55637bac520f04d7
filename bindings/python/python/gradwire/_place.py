"""The position of a worker among the workers of its machine, which launchers write to the environment. It knows no framework."""

from __future__ import annotations

import os
from typing import NamedTuple

from .errors import SettingError


class Place(NamedTuple):
    """The position of this worker among the workers of its machine."""

    rank: int
    size: int


# Launchers set these variables to the position of a worker on its machine.
PLACES = (("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
# Open MPI counts all of its tasks, so that this is a worker's place only where every task is a worker.
OF_TASKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
# How many tasks there are, as Open MPI, other MPIs and Slurm tell each.
TASKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
# Of a configuration that is wrong.
_EXIT_CONFIG = 78


def number(name: str) -> int | None:
    """The number in an environment variable, if it has one."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def place(workers: int) -> Place | None:
    """The position from the environment, or None if it cannot be determined. If it were guessed wrongly, two workers would
    share a device without notice."""
    tasks = [count for count in map(number, TASKS) if count is not None]
    of_tasks = [OF_TASKS] if number("OMPI_COMM_WORLD_SIZE") == workers else []
    for rank_name, size_name in [*PLACES, *of_tasks]:
        position, count = number(rank_name), number(size_name)
        if position is not None:
            return Place(position, position + 1 if count is None else count)
    return None if workers > 1 and any(count > 1 for count in tasks) else Place(0, 1)


def known(position: Place | None) -> Place:
    """The position; raises SettingError if it could not be determined."""
    if position is None:
        raise SettingError(
            "cannot determine local_rank: set BYTEPS_LOCAL_RANK and BYTEPS_LOCAL_SIZE, start workers with `gradwire launch` "
            "or `torchrun`, or place consecutive tasks on each machine (mpirun --map-by slot)",
            "unknown_place",
            _EXIT_CONFIG,
        )
    return position
