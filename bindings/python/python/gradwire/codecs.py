"""Codecs, which compress contributions before they are sent. Pulled weights and initial values are not compressed. Only
float32 tensors can have a codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Codec:
    """A codec and its error compensation. With `feedback`, the encoding error of a gradient is added to the next gradient;
    `momentum` (0 to below 1) is applied before encoding."""

    feedback: bool = True
    momentum: float = 0.0

    def _codec(self) -> Any:
        raise NotImplementedError("use a subclass of Codec, such as TopK")

    def _json(self) -> dict[str, Any]:
        """The representation that is sent to the cluster."""
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
    """One sign bit per element, and one scale per chunk."""

    def _codec(self) -> Any:
        return "onebit"


@dataclass(frozen=True)
class TwoBit(Codec):
    """Each element becomes `threshold`, `-threshold` or 0, as in MXNet's 2-bit compression."""

    threshold: float = 0.5

    def _codec(self) -> Any:
        return {"twobit": {"threshold": self.threshold}}


@dataclass(frozen=True)
class TopK(Codec):
    """Sends only the elements with the largest magnitudes; `share` is their fraction, at most 0.5."""

    share: float = 0.01

    def _codec(self) -> Any:
        return {"topk": {"share": self.share}}


@dataclass(frozen=True)
class RandomK(Codec):
    """Sends only randomly chosen elements; `share` is their fraction, at most 0.5."""

    share: float = 0.1

    def _codec(self) -> Any:
        return {"randomk": {"share": self.share}}


@dataclass(frozen=True)
class Dither(Codec):
    """Quantizes magnitudes to 2, 4 or 8 bits with stochastic rounding."""

    bits: int = 4

    def _codec(self) -> Any:
        return {"dither": {"bits": self.bits}}
