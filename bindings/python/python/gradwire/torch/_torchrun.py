"""Processes that torchrun, or another launcher with its variables, has started: the rank that they have, and the cluster that they join.
If all of them are on this host and there is no cluster, rank 0 starts one, which ends with them."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed

from .. import client as clients
from .._place import number
from ..errors import LaunchError
from ..launching import Cluster, launch

#: Where workers look for a scheduler on this host (`scheduler.port`).
PORT = 9092
# Variables of Gradwire and ps-lite that precede those of torchrun.
OWN_RANKS = ("GRADWIRE_NODE__RANK", "DMLC_WORKER_ID", "DMLC_RANK")
OWN_HOSTS = ("GRADWIRE_SCHEDULER__HOST", "DMLC_PS_ROOT_URI", "GRADWIRE_CONFIG")
_OWN_PORTS = ("GRADWIRE_SCHEDULER__PORT", "DMLC_PS_ROOT_PORT")
_SERVERS = "GRADWIRE_CLUSTER__SERVERS"
_PREFIX = "GRADWIRE_"
# Ranks import their libraries at different speeds.
_STARTS_WITHIN_S = 120
# A worker may evaluate for long after rank 0 has ended.
_LEAVE_WITHIN_S = 1800.0
# If rank 0 has failed, the job ends; the others hear of the reason.
_FAIL_WITHIN_S = 10.0
_NOTE_S = 30.0

# How often this process has looked for a cluster.
_turn = 0
_started: Cluster | None = None


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from the variables that torchrun, or a script for torch's own process group, has set: the rank, and where the scheduler
    is. Gradwire's own settings precede them."""
    rank, size = number("RANK"), number("WORLD_SIZE")
    if rank is None or size is None or "MASTER_ADDR" not in os.environ:
        return {}
    names = {name.replace("__", ".") for name in given}
    taken: dict[str, Any] = {}
    if not any(name in os.environ for name in OWN_RANKS) and "node.rank" not in names:
        taken["node__rank"] = rank
    is_named = any(name in os.environ for name in OWN_HOSTS) or os.path.exists("gradwire.toml")
    if is_named or names & {"scheduler", "scheduler.host"}:
        return taken
    if number("LOCAL_WORLD_SIZE") != size:
        taken["scheduler__host"] = os.environ["MASTER_ADDR"]
    elif not any(name in os.environ for name in _OWN_PORTS) and "scheduler.port" not in names:
        scheduler = _agreed(rank, size, given)
        if scheduler:
            taken["scheduler"] = scheduler
    return taken


def end(within_s: float = _LEAVE_WITHIN_S) -> None:
    """Ends the cluster that this process has started. The other workers may still need it, so this waits until they have left."""
    global _started
    cluster, _started = _started, None
    if cluster is None:
        return
    try:
        while within_s > 0 and not cluster.wait(min(within_s, _NOTE_S)):
            within_s -= _NOTE_S
            print("gradwire: rank 0 has ended, and waits until all other workers have left the cluster that it started", file=sys.stderr)
    finally:
        cluster.close()


def _agreed(rank: int, size: int, given: Mapping[str, Any]) -> str:
    """The scheduler's address, which rank 0 publishes in torchrun's store; empty if it is the usual one."""
    global _turn
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        # Rank 0 is to create the store, which the script itself may do: `init_process_group`.
        return ""
    host, port = os.environ["MASTER_ADDR"], number("MASTER_PORT") or 0
    store = torch.distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=_STARTS_WITHIN_S))
    # torchrun restarts all processes at once; the cluster of the processes before them has ended.
    key = f"gradwire/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{_turn}"
    _turn += 1
    if rank == 0:
        try:
            address = "" if _listens() else _start(size, given)
        except LaunchError as error:
            store.set(key, f"failed {error}")
            raise
        store.set(key, f"at {address}")
        return address
    try:
        word, _, text = store.get(key).decode().partition(" ")
    except RuntimeError as error:
        reason = f"rank 0 has not called gradwire.torch.init() within {_STARTS_WITHIN_S} s: {error}"
        raise LaunchError(reason, "no_cluster") from None
    if word == "failed":
        raise LaunchError(f"rank 0 could not start a cluster: {text}", "no_cluster")
    return text


def _listens() -> bool:
    """Whether there is a scheduler where workers look for it."""
    try:
        socket.create_connection(("127.0.0.1", PORT), 1.0).close()
    except OSError:
        return False
    return True


def _start(workers: int, given: Mapping[str, Any]) -> str:
    """Starts a scheduler and servers, which have the settings of this process."""
    global _started
    names = {name[len(_PREFIX) :].lower(): value for name, value in os.environ.items() if name.startswith(_PREFIX) and "__" in name}
    names.update((name.replace(".", "__"), value) for name, value in given.items())
    own = ("node__", "scheduler__", "cluster__servers", "cluster__workers")
    shared = {name: value for name, value in names.items() if not name.startswith(own)}
    servers = number(_SERVERS) or 1
    _started = launch(servers=servers, workers=workers, **shared).__enter__()
    atexit.register(_at_exit)
    print(
        f"gradwire: rank 0 has started a cluster for this job, a scheduler at {_started.scheduler} and {servers} server(s) ({_SERVERS}), "
        f"because nothing listens at port {PORT}; to use another cluster, set GRADWIRE_SCHEDULER__PORT or GRADWIRE_SCHEDULER__HOST",
        file=sys.stderr,
    )
    return _started.scheduler


def _at_exit() -> None:
    # First this worker leaves, or reports why it failed: otherwise the scheduler would wait for it.
    clients.leave()
    end(_LEAVE_WITHIN_S if getattr(sys, "last_value", None) is None else _FAIL_WITHIN_S)
