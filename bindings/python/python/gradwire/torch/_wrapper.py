"""An optimizer of torch around another one, which has the groups and the state. It must not know what a step is."""

from __future__ import annotations

from typing import Any

import torch


class Wrapper(torch.optim.Optimizer):
    """Its base class is not initialised. `optimizer` is the wrapped one."""

    optimizer: torch.optim.Optimizer

    # What an optimizer has is the wrapped one's: its hooks are registered there, too.

    def __getattr__(self, name: str) -> Any:
        # What is copied or unpickled has nothing yet.
        if "optimizer" not in vars(self):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the wrapped optimizer."""
        return self.optimizer.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        """That of the wrapped optimizer."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        """That of the wrapped optimizer."""
        return self.optimizer.defaults

    def state_dict(self) -> dict[str, Any]:
        """That of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """That of the wrapped optimizer."""
        self.optimizer.load_state_dict(state_dict)
