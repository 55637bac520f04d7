"""A store whose parameters an optimizer of torch updates: one optimizer for each parameter, so that each gradient is applied when it comes."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InputError


class TorchStore:
    """See `Store` of the handler. Attributes of an optimizer are those of its parameter groups, by parameter."""

    def __init__(self) -> None:
        self._kind: type[Any] | None = None
        self._groups: dict[str, dict[str, Any]] = {}
        self._weights: dict[str, torch.nn.Parameter] = {}
        self._optimizers: dict[str, Any] = {}

    def make(self, kind: type[Any], attributes: dict[str, Any]) -> Any:
        for group in attributes.values():
            self._optimizer_of(kind, torch.nn.Parameter(torch.zeros(1)), group)

    def set_optimizer(self, kind: type[Any], attributes: dict[str, Any]) -> None:
        self._kind, self._groups = kind, attributes
        self._optimizers.clear()

    def change(self, attributes: dict[str, Any]) -> None:
        for key, group in attributes.items():
            self._groups.setdefault(key, {}).update(group)
            if key in self._optimizers:
                _set(self._optimizers[key], group)

    def init(self, key: str, index: Any, value: Any, is_sparse: bool) -> None:
        if key in self._weights:
            if tuple(self._weights[key].shape) != value.shape:
                raise InputError(f"{key} has the shape {tuple(self._weights[key].shape)} here, and {value.shape} in the script", "wrong_shape")
            return
        self._weights[key] = torch.nn.Parameter(torch.from_numpy(value.copy()))

    def _weight(self, key: str) -> torch.nn.Parameter:
        if key not in self._weights:
            raise InputError(f"there is no parameter {key}: init comes first", "request")
        return self._weights[key]

    def _optimizer(self, key: str) -> Any:
        if key not in self._optimizers:
            if self._kind is None:
                raise InputError("no optimizer is set", "optimizer")
            self._optimizers[key] = self._optimizer_of(self._kind, self._weight(key), self._groups.get(key, {}))
        return self._optimizers[key]

    @staticmethod
    def _optimizer_of(kind: type[Any], weights: torch.nn.Parameter, group: dict[str, Any]) -> Any:
        try:
            made = kind([{**group, "params": [weights]}])
        except (TypeError, ValueError) as error:
            raise InputError(f"{kind.__name__} cannot be made with one group of parameters ({error}): register a subclass that can", "optimizer") from error
        _set(made, group)
        return made

    def push(self, key: str, arrays: list[Any]) -> None:
        weights, optimizer = self._weight(key), self._optimizer(key)
        shape = tuple(weights.shape)
        if len(arrays) == 1:
            gradient = torch.from_numpy(arrays[0].copy())
            if tuple(gradient.shape) != shape:
                raise InputError(f"{key} has the shape {shape}, and the gradient {tuple(gradient.shape)}", "wrong_shape")
        else:
            ids, values = arrays
            if ids.ndim != 1 or values.shape != (len(ids), *shape[1:]) or (ids.size and (ids.min() < 0 or ids.max() >= shape[0])):
                raise InputError(f"{key} has the shape {shape}, and the gradient has other rows", "wrong_shape")
            rows = torch.from_numpy(ids.copy()).reshape(1, -1)
            gradient = torch.sparse_coo_tensor(rows, torch.from_numpy(values.copy()), shape).coalesce()
        weights.grad = gradient.to(weights.dtype)
        optimizer.step()
        weights.grad = None

    def pull(self, key: str) -> Any:
        return self._weight(key).detach().numpy()

    def pull_rows(self, key: str, ids: Any) -> Any:
        raise InputError("rows of parameters of torch are not pulled", "request")

    def keys(self) -> list[str]:
        return list(self._weights)

    def state(self) -> tuple[Any, list[Any]]:
        arrays = [self.pull(key) for key in self._weights]
        states = {}
        for key, optimizer in self._optimizers.items():
            states[key] = {name: _described(value, arrays) for name, value in optimizer.state[self._weights[key]].items()}
        return [list(self._weights), self._groups, states], arrays

    def restore(self, value: Any, arrays: list[Any]) -> None:
        keys, groups, states = value
        self._groups.update(groups)
        for key, array in zip(keys, arrays):
            self.init(key, None, array, False)
        rest = iter(arrays[len(keys) :])
        for key, state in states.items():
            self._optimizer(key).state[self._weights[key]].update({name: _made(one, rest) for name, one in state.items()})


def _set(optimizer: Any, group: dict[str, Any]) -> None:
    for name, value in group.items():
        if name not in optimizer.defaults:
            raise InputError(f"{type(optimizer).__name__} has no option {name} here: servers and workers must have the same class", "optimizer")
        optimizer.param_groups[0][name] = value


def _described(value: Any, arrays: list[Any]) -> Any:
    if isinstance(value, torch.Tensor):
        arrays.append(value.detach().numpy())
        return ("tensor",)
    return value


def _made(of: Any, arrays: Any) -> Any:
    return torch.from_numpy(next(arrays).copy()) if of == ("tensor",) else of
