"""How contributions are made shorter before they are sent. What is pulled, and the initial value, are plain. Only float32
tensors can have a codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Codec:
    """A codec with what a worker does around it. `feedback` adds to the next gradient what the encoding of this one
    left out; `momentum` (0 to below 1) is applied before it."""

    feedback: bool = True
    momentum: float = 0.0

    def _codec(self) -> Any:
        raise NotImplementedError("use one of the kinds of codecs, such as TopK")

    def _json(self) -> dict[str, Any]:
        """As the control plane has it."""
        return {"codec": self._codec(), "feedback": self.feedback, "momentum": self.momentum}


@dataclass(frozen=True)
class Float16(Codec):
    """IEEE 754 binary16."""

    def _codec(self) -> Any:
        return "f16"


@dataclass(frozen=True)
class BFloat16(Codec):
    """bfloat16."""

    def _codec(self) -> Any:
        return "bf16"


@dataclass(frozen=True)
class OneBit(Codec):
    """Signs, and one scale a chunk."""

    def _codec(self) -> Any:
        return "onebit"


@dataclass(frozen=True)
class TwoBit(Codec):
    """Up by `threshold`, down by it, or nothing: MXNet's."""

    threshold: float = 0.5

    def _codec(self) -> Any:
        return {"twobit": {"threshold": self.threshold}}


@dataclass(frozen=True)
class TopK(Codec):
    """The `share` of elements with the largest magnitudes, at most 0.5."""

    share: float = 0.01

    def _codec(self) -> Any:
        return {"topk": {"share": self.share}}


@dataclass(frozen=True)
class RandomK(Codec):
    """A `share` of elements picked at random, at most 0.5."""

    share: float = 0.1

    def _codec(self) -> Any:
        return {"randomk": {"share": self.share}}


@dataclass(frozen=True)
class Dither(Codec):
    """Magnitudes in steps of 2, 4 or 8 bits, rounded at random."""

    bits: int = 4

    def _codec(self) -> Any:
        return {"dither": {"bits": self.bits}}
