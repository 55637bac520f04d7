"""The store that MXNet's trainers and scripts call. Names, defaults and semantics are those of MXNet; see `Key` for the
data transfer."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import mxnet as mx
from mxnet.base import MXNetError
from mxnet.kvstore import KVStore, KVStoreBase

import gradwire

from . import _arrays, _connection, _rules
from ._arrays import flat_list, pairs
from ._key import Key
from ._rates import Rates
from ._served import ServedKey, Serving

#: Set to "workers", servers sum only. Set to "serve", servers of `gradwire serve` update the weights of asynchronous stores.
UPDATE_VARIABLE = "MXNET_GRADWIRE_UPDATE"
#: How often a worker that saves looks whether the others save, too.
_LOOK_S = 0.5
#: For how long it waits for them.
_SAVE_WITHIN_S = 1800.0
#: Ranks in a list of the missing.
_LISTED_MAX = 16
_log = logging.getLogger("gradwire.mxnet")
_Call = TypeVar("_Call", bound=Callable[..., Any])


def as_mxnet(call: _Call) -> _Call:
    """Raises errors of Gradwire as MXNetError, as scripts expect, with the original error as the cause."""

    @functools.wraps(call)
    def wrapped(*words: Any, **named: Any) -> Any:
        try:
            return call(*words, **named)
        except gradwire.Error as error:
            raise MXNetError(f"gradwire: {error}") from error

    return wrapped  # type: ignore[return-value]


def _advice(optimizer: Any) -> str:
    return ", or make the optimizer with lazy_update=False" if hasattr(optimizer, "lazy_update") else ""


class Store(KVStore):  # type: ignore[misc]
    """A key-value store over Gradwire. It is a subclass of `KVStore` because gluon accepts no other class for sparse weights;
    no store of MXNet is created."""

    #: Each contribution counts by itself.
    is_async = False
    type_name = "gradwire_dist_sync"

    @as_mxnet
    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        self._connection = _connection.get()
        self._client = self._connection.client
        self._number = self._connection.number_store()
        self._keys: dict[Any, Key | ServedKey] = {}
        self._rates = Rates(self._client, self._number)
        self._codec: Any = None
        self._optimizer: Any = None
        # What is called with key, gradient and weights where workers update.
        self._updater: Any = None
        # The same for keys whose gradients are rows, where servers update the others.
        self._rows_updater: Any = None
        # It is a function of the script's, which calls keys as the script does; optimizers number them.
        self._is_scripts = False
        # In a worker that replaces a failed one and that rounds wait for, until `resume`. Without that, a worker takes part from the next
        # round on, whatever its step.
        self._is_behind = bool(self._client._is_awaited) and not self.is_async
        # What each key was pulled into before the first step, which `resume` fills again.
        self._filled: dict[Any, list[Any]] = {}
        self._has_begun = False
        self._has_resumed = False
        # Servers that apply optimizers of MXNet.
        self._serving: Serving | None = None
        self.handle = None

    def __del__(self) -> None:
        # The base class would free what was never made.
        pass

    @property
    def type(self) -> str:
        """The type of the store; trainers look for "dist", "_sync" and "async" in it."""
        return self.type_name

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return int(self._client.rank)

    @property
    def num_workers(self) -> int:
        """The number of workers of the job."""
        return int(self._client.workers)

    @property
    def num_dead_node(self) -> int:
        """1 after a failed member has ended the job for this worker, else 0. Failures that the job survives are not counted."""
        return 0 if self._client.dead is None else 1

    def get_num_dead_node(self, node_id: int = 7, timeout: int = 60) -> int:
        """Like `num_dead_node`; both arguments are ignored."""
        return self.num_dead_node

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Whether the store has a capability. It can update weights."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"Unknown capability: {capability}")

    # Keys.

    @as_mxnet
    def init(self, key: Any, value: Any) -> None:
        """Declares keys with their initial values. The values of rank 0 are used. Every worker must call it with the same keys."""
        for one, values in pairs(key, value):
            self._declare(one, values[0])

    def _declare(self, key: Any, value: Any) -> Key | ServedKey:
        if key in self._keys:
            raise MXNetError(f"gradwire: key {key!r} is already initialised")
        index = self._index_of(key)
        if self._serving is not None:
            return self._serve_key(key, ServedKey(self._serving.remote, f"{self._number}/{key}", index, value), value)
        rule = self._rule(index) or gradwire.Assign()
        if self.is_async and self._updater is not None:
            raise MXNetError(
                "gradwire: in an asynchronous store workers cannot update weights, because it has no rounds: use a synchronous store"
            )
        mode = "async" if self.is_async else "sync"
        name = f"mxnet/{self._number}/{key}"
        new = Key(self._connection, name, index, value, rule, self._codec, mode)
        # The others may have trained it already.
        if not self._is_behind or not self._client.resume([new.tensor]):
            new.set_initial(value)
        self._keys[key] = new
        if self._updater is not None:
            new.hold()
        return new

    def _index_of(self, key: Any) -> Any:
        """What the optimizer calls a parameter: its number. Names have the number that the optimizer knows, or that of
        their turn."""
        if not isinstance(key, str):
            return key
        names = getattr(self._optimizer, "idx2name", {})
        known = [index for index, name in names.items() if name == key]
        return known[0] if known else len(self._keys)

    def _key(self, key: Any) -> Any:
        found = self._keys.get(key)
        if found is None:
            raise MXNetError(f"gradwire: key {key!r} is not initialised: call init with it first, on every worker")
        return found

    # Moving.

    @as_mxnet
    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Calls `init`, and then pulls the value of rank 0 into `out`."""
        self.init(key, value)
        self.pull(key, out, priority)

    @as_mxnet
    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Contributes gradients. Their memory may be reused once the engine has copied them."""
        for one, arrays in pairs(key, value):
            self._push(one, arrays, priority)

    def _push(self, name: Any, arrays: list[Any], priority: int) -> None:
        self._begin()
        key = self._key(name)
        if self._serving is not None:
            self._serving.follow(self._optimizer, name)
            key.push(arrays)
            return
        called = name if self._is_scripts else key.index
        self._look_at_rates(key)
        if self._is_for_rows(key, name, arrays):
            key.update_rows(arrays, self._updater or self._updater_of_rows(key), called, priority)
        elif self._updater is not None:
            key.update(arrays, self._updater, called, priority)
        else:
            self._advance(key)
            key.push(arrays, priority)

    def _is_for_rows(self, key: Key, name: Any, arrays: list[Any]) -> bool:
        """Are these gradients rows, and the optimizer one that leaves others alone? Then it runs here, because servers
        update whole tensors. A key's first such gradients decide, and others are refused."""
        optimizer = self._updater if self._is_scripts else self._optimizer
        if optimizer is None or not (key.is_by_rows or _rules.leaves_rows(optimizer, key.index, key.is_sparse)):
            return False
        kinds = {_arrays.is_sparse(array) for array in arrays}
        if len(kinds | ({key.has_rows} - {None})) > 1:
            raise MXNetError(
                f"gradwire: key {name!r} has row-sparse and dense gradients, and this optimizer updates only the rows of "
                f"row-sparse gradients: push one kind on every worker{_advice(optimizer)}"
            )
        has_rows = kinds.pop()
        if has_rows and self._has_resumed:
            raise MXNetError(
                f"gradwire: key {name!r} has row-sparse gradients, and this optimizer updates their rows on the workers, whose weights a "
                f"restarted worker could not get: do not call resume, or push dense gradients{_advice(optimizer)}"
            )
        if has_rows and self.is_async:
            raise MXNetError(
                f"gradwire: key {name!r} has row-sparse gradients and an optimizer that updates only their rows, but servers of "
                f"an asynchronous store update all rows: push dense gradients, use a synchronous store{_advice(optimizer)}"
            )
        key.has_rows = has_rows
        if has_rows:
            key.hold_rows()
        return has_rows

    def _updater_of_rows(self, key: Key) -> Any:
        """MXNet's own updater, which has the key from now on."""
        if self._rows_updater is None:
            self._rows_updater = mx.optimizer.get_updater(self._optimizer)
        self._sum_only(key)
        return self._rows_updater

    @as_mxnet
    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Fetches the weights of the last round that this worker contributed to."""
        for one, arrays in pairs(key, out):
            self._pull(self._key(one), arrays, priority, ignore_sparse)
            if not self._has_begun:
                self._filled[one] = arrays

    def _pull(self, key: Key, arrays: list[Any], priority: int, ignore_sparse: bool) -> None:
        dense = [array for array in arrays if not _arrays.is_sparse(array)]
        if len(dense) < len(arrays) and not ignore_sparse:
            raise MXNetError("gradwire: cannot pull into a row-sparse array: use row_sparse_pull")
        if not dense:
            return
        if key.stored is not None:
            key.read(dense)
        else:
            key.pull(dense, priority)

    @as_mxnet
    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Contributes gradients, and fetches the weights (or the sum of the gradients) into `out`, or into the gradients."""
        # Nothing is converted twice: the engine must see one array where there is one.
        known: dict[int, Any] = {}
        values = pairs(key, value, known)
        outs = dict(values if out is None else pairs(key, out, known))
        for one, arrays in values:
            found, targets = self._key(one), outs[one]
            whole = self._serving is None and found.stored is None and not any(map(_arrays.is_sparse, arrays + targets))
            if whole:
                self._begin()
                self._look_at_rates(found)
                self._advance(found)
                found.push_pull(arrays, targets, priority)
            else:
                self._push(one, arrays, priority)
                self._pull(found, targets, priority, True)

    @as_mxnet
    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Fetches rows of weights as row-sparse arrays."""
        ids = flat_list(row_ids)
        with mx.autograd.pause():
            for one, arrays in pairs(key, out):
                if len(ids) not in (1, len(arrays)):
                    raise MXNetError(f"gradwire: {len(ids)} lists of row ids for {len(arrays)} arrays: pass one list, or one per array")
                self._key(one).pull_rows(ids, arrays, priority)

    # Updating.

    @as_mxnet
    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """Compresses the gradients of keys that are initialised later: {"type": "2bit", "threshold": 0.5}, or "1bit"."""
        params = dict(compression_params)
        kind = params.get("type")
        if self._keys:
            raise MXNetError("gradwire: call set_gradient_compression before keys are initialised")
        if kind == "2bit":
            self._codec = gradwire.TwoBit(threshold=float(params.get("threshold", 0.5)))
        elif kind == "1bit":
            self._codec = gradwire.OneBit()
        else:
            raise MXNetError(f"gradwire: unknown compression {kind!r}: use 2bit or 1bit")

    @as_mxnet
    def set_optimizer(self, optimizer: Any) -> None:
        """Sets the optimizer that updates the weights: on servers if they have its rule, else identically on every worker.
        Later changes of its learning rate apply on servers as well. With MXNET_GRADWIRE_UPDATE=workers it always runs on workers."""
        before, self._optimizer, self._updater, self._rows_updater = self._optimizer, optimizer, None, None
        self._is_scripts = False
        self._forget_kinds()
        try:
            if os.environ.get(UPDATE_VARIABLE) == ("serve" if self.is_async else "workers"):
                raise _rules.Unmapped(f"{UPDATE_VARIABLE} is set")
            if any(key.stored is not None for key in self._keys.values()):
                raise _rules.Unmapped("the workers have held the weights since they updated them")
            for key in self._keys.values():
                self._check_change(_rules.rule_of(optimizer, key.index), key)
            _rules.rule_of(optimizer, next(iter(self._keys), 0))
        except _rules.Unmapped as why:
            if self.is_async:
                # What is refused changes nothing.
                self._optimizer = before
                self._serve(optimizer, str(why))
            else:
                self._update_here(mx.optimizer.get_updater(optimizer), str(why))
            return
        if self._serving is not None:
            raise MXNetError("gradwire: `gradwire serve` updates the weights of this store: create another store for this optimizer")
        for key in self._keys.values():
            self._follow(key)

    def _serve(self, optimizer: Any, why: str) -> None:
        """Servers of `gradwire serve` apply the optimizer from now on."""
        if self._codec is not None:
            raise MXNetError(f"gradwire: servers have no rule for this optimizer ({why}), and gradwire serve takes no compressed gradients")
        try:
            serving = self._serving or Serving(self._client, f"mxnet/{self._number}")
            serving.check(optimizer)
        except (gradwire.InputError, gradwire.OperationError) as error:
            raise MXNetError(f"gradwire: servers have no rule for this optimizer ({why}): {error}; or use a synchronous store") from error
        _log.info("servers update the weights by %s itself: %s", type(optimizer).__name__, why)
        self._optimizer, self._serving = optimizer, serving
        serving.set_optimizer(optimizer)
        for name, key in list(self._keys.items()):
            if isinstance(key, Key):
                value = mx.nd.empty(key.shape, mx.cpu(), dtype=key.dtype)
                key.pull([value], 0)
                value = value.tostype("row_sparse") if key.is_sparse else value
                self._serve_key(name, ServedKey(serving.remote, f"{self._number}/{name}", key.index, value), value)
        self._client.barrier(f"mxnet.serve.{self._number}")

    def _serve_key(self, name: Any, key: ServedKey, value: Any) -> ServedKey:
        self._keys[name] = key
        if self.rank == 0:
            key.set_initial(value)
        self._client.barrier(f"mxnet.serve.{self._number}")
        return key

    @staticmethod
    def _check_change(rule: Any, key: Key) -> None:
        if "lamb" in rule.rule and "lamb" not in getattr(key.rule, "rule", {}):
            raise _rules.Unmapped("LAMB was set after keys were initialised, and needs another placement of tensors")

    def _update_here(self, updater: Any, why: str, is_scripts: bool = False) -> None:
        if self.is_async:
            raise MXNetError(
                f"gradwire: this updater can run only on the workers ({why}), and an asynchronous store has no rounds for that: call "
                "set_optimizer instead, or use a synchronous store"
            )
        _log.info("workers update the weights: %s", why)
        self._updater, self._is_scripts = updater, is_scripts
        self._forget_kinds()
        for key in self._keys.values():
            key.hold()
            self._sum_only(key)

    def _sum_only(self, key: Key) -> None:
        """Servers sum a key's gradients from now on."""
        if not isinstance(key.rule, gradwire.Assign):
            # Every worker's call is the same; one is enough.
            if self.rank == 0:
                key.change_rule(gradwire.Assign())
            key.rule = gradwire.Assign()

    def _forget_kinds(self) -> None:
        """Another optimizer may have gradients of another kind, but for keys that are held by rows."""
        for key in self._keys.values():
            if not key.is_by_rows:
                key.has_rows = None

    def _rule(self, index: Any) -> Any:
        """What servers do, where they update."""
        if self._optimizer is None or self._updater is not None:
            return None
        try:
            return _rules.rule_of(self._optimizer, index)
        except _rules.Unmapped as why:
            raise MXNetError(
                f"gradwire: the optimizer was changed in a way that servers have no rule for ({why}): undo the change, or call "
                "set_optimizer with it again, so that the workers update the weights from then on"
            ) from why

    def _look_at_rates(self, key: Key) -> None:
        """Warns if the workers' optimizers have different rates. Without rounds nobody knows when another worker changes its own."""
        if self._optimizer is not None and not self._is_scripts and not self.is_async and self.num_workers > 1:
            on_servers = self._updater is None
            effect = "Servers use that of rank 0" if on_servers else "The weights of the workers diverge"
            self._rates.look(self._optimizer, key, effect)

    def _advance(self, key: Key) -> None:
        """One more update of a key: the optimizer counts it, and servers are told of another learning rate."""
        if self._optimizer is None:
            if self.is_async:
                raise MXNetError("gradwire: an asynchronous store needs an optimizer: call set_optimizer before push")
            return
        # MXNet's servers count every worker's contribution to an asynchronous store; workers are taken to keep pace here.
        for _ in range(self.num_workers if self.is_async else 1):
            self._optimizer._update_count(key.index)
        self._follow(key)

    def _follow(self, key: Key) -> None:
        rule = self._rule(key.index)
        if rule is None or (rule == key.rule and not key.is_told_again):
            return
        # Before `resume` it is not known from which step on this would be.
        if self.rank == 0 and not self._is_behind:
            self._tell_rule(key, rule)
        key.rule, key.is_told_again = rule, False

    @staticmethod
    def _tell_rule(key: Key, rule: Any) -> None:
        try:
            key.change_rule(rule)
        except gradwire.DeclareError:
            # The step is repeated. If the failed process had contributed to it, the round may be over, with the rule that process told.
            if not key.is_told_again:
                raise

    def _set_updater(self, updater: Any) -> None:
        """Sets a function of key, gradient and weights, which runs on every worker."""
        self._update_here(updater, "the script has its own updater", is_scripts=True)

    # After a failure.

    def _begin(self) -> None:
        """A step begins. Raises an error in a worker that would repeat all steps from the first one on, which servers ignore."""
        if self._is_behind:
            raise MXNetError(
                "gradwire: this worker replaces one that failed, and does not know which step the others are in: call "
                "gradwire.mxnet.resume before the first step on every worker, and begin with the step that it returns"
            )
        if not self._has_begun:
            self._has_begun = True
            self._filled.clear()

    def resume(self, frozen: frozenset[Any] = frozenset()) -> int:
        """See `gradwire.mxnet.resume`. `frozen`: keys without gradients."""
        self._check_resume()
        is_behind, self._is_behind = self._is_behind, False
        self._connection.has_resumed = self._has_resumed = True
        for key in self._keys.values():
            # A pull that the engine has not begun yet would be the first one after `Client.resume`.
            key.settle()
        trained = {name: key for name, key in self._keys.items() if name not in frozen}
        steps = int(self._client.resume([key.tensor for key in trained.values()]))
        if not steps and not is_behind:
            return 0
        for name, key in trained.items():
            # The first pull brings the weights after this step, even if the others have finished one more.
            key.pull(self._filled.get(name) or [mx.nd.empty(key.shape, mx.cpu(), dtype=key.dtype)], 0)
        if steps:
            self._optimizer._index_update_count.update((key.index, steps) for key in self._keys.values())
            self._optimizer.num_update = max(self._optimizer.num_update, steps)
            self._rates.go_on(steps)
            for key in trained.values():
                key.is_told_again = True
        return steps

    def _check_resume(self) -> None:
        if self._has_begun:
            raise MXNetError("gradwire: call resume before the first step")
        if self._connection.has_resumed:
            raise MXNetError("gradwire: resume was called before: it continues a training with one Trainer or store, and can be called once")
        if self._client._has_rejoined and not self._client._is_awaited:
            raise MXNetError('gradwire: resume cannot continue a training with cluster.worker_loss "continue": set "wait"')
        if self.is_async:
            raise MXNetError("gradwire: resume needs a synchronous store: an asynchronous one has no steps that workers share")
        if self._updater is not None:
            raise MXNetError("gradwire: resume needs an optimizer that runs on the servers, but this one runs on the workers (see the log for why)")
        if self._optimizer is None:
            raise MXNetError("gradwire: resume needs an optimizer on the servers, which keep its state: call set_optimizer before it")
        if any(key.is_sparse for key in self._keys.values()):
            raise MXNetError("gradwire: resume does not support row-sparse weights: use dense ones")

    # The rest.

    @as_mxnet
    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Saves the state of the optimizer, which is the same on every worker. If servers hold the state, they send it in
        additional rounds: every worker must call this. File names may differ."""
        if self._serving is not None:
            raise MXNetError("gradwire: the servers have the optimizer's states: `gradwire serve --state DIR` saves them")
        updater = self._updater
        if updater is None:
            updater = self._states_of_servers()
        with open(fname, "wb") as file:
            file.write(updater.get_states(dump_optimizer))

    def _states_of_servers(self) -> Any:
        if self._optimizer is None:
            raise MXNetError("gradwire: no optimizer is set, so there are no states: call set_optimizer first")
        if self._has_resumed:
            # The states take rounds of all keys, and a restarted worker could not tell them from steps.
            raise MXNetError(
                "gradwire: optimizer states cannot be saved from servers in a training that called resume: let servers write checkpoints, "
                "which have them (checkpoint.directory)"
            )
        counts = {name: _rules.kept_by(key.rule) for name, key in self._keys.items()}
        halves = any(key.dtype.name == "float16" for key in self._keys.values())
        if self.is_async or halves or None in counts.values():
            raise MXNetError(
                "gradwire: optimizer states cannot be saved from servers with LAMB, float16, or an asynchronous store: set "
                f"{UPDATE_VARIABLE}=workers for this training"
            )
        self._meet_to_save()
        updater = mx.optimizer.get_updater(self._optimizer)
        for name, key in self._keys.items():
            if key.is_by_rows:
                updater.states[key.index] = self._rows_updater.states[key.index]
                continue
            kept = key.kept(counts[name] or 0, self.rank == 0)
            updater.states[key.index] = _rules.state_of(self._optimizer, kept)
        return updater

    def _meet_to_save(self) -> None:
        """Waits until every worker saves. If some worker has pushed its next gradient instead, it does not save, and this raises an error:
        otherwise this worker and those that wait for its gradient would wait for each other. Rounds that save would also be completed by
        that gradient."""
        key = min(self._keys.values(), key=lambda key: key.tensor.size, default=None)
        until = time.monotonic() + _SAVE_WITHIN_S
        while True:
            try:
                self._client._barrier_within("mxnet.states", _LOOK_S)
                return
            except gradwire.DeadlineError:
                if key is None or time.monotonic() >= until:
                    raise
            except gradwire.OperationError as error:
                # If the only other worker has left, rounds need nobody else.
                if error.code != "barrier" or self.num_workers != 2:
                    raise
                return
            missing = key.missing(_LOOK_S)
            # A list has only so many ranks, the lowest.
            known = range(missing[-1] if len(missing) >= _LISTED_MAX else self.num_workers)
            ahead = [rank for rank in known if rank not in missing]
            if ahead:
                who = ", ".join(f"worker {rank}" for rank in ahead)
                raise MXNetError(
                    f"gradwire: save_optimizer_states is a call that every worker must make, but {who} continued to train without it: "
                    f"call it on every worker at the same step (file names may differ), or set {UPDATE_VARIABLE}=workers, with which "
                    "one worker's call is enough. Training can continue"
                )

    @as_mxnet
    def load_optimizer_states(self, fname: str) -> None:
        """Loads states that `save_optimizer_states` saved, on every worker; the workers update the weights from now on. The file
        is a pickle: load only files that you trust."""
        if self._optimizer is None:
            raise MXNetError("gradwire: no optimizer is set, so there are no states: call set_optimizer first")
        if self._updater is None:
            self._update_here(mx.optimizer.get_updater(self._optimizer), "optimizer states were loaded")
        with open(fname, "rb") as file:
            self._updater.set_states(file.read())
        self._optimizer = self._updater.optimizer

    @as_mxnet
    def _barrier(self) -> None:
        if self._serving is not None:
            self._serving.remote.settle()
        self._client.barrier()

    barrier = _barrier

    def _send_command_to_servers(self, head: int, body: Any) -> None:
        # 2 stops servers, which end with their workers; 3 says that rounds are synchronous, which keys say.
        if head not in (2, 3):
            raise MXNetError(f"gradwire: unsupported command {head}: servers never execute code that they receive")
