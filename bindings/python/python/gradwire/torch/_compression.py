"""What gradients are sent as, under the names that BytePS's scripts use."""

from __future__ import annotations

import torch

from ..codecs import Codec, Float16
from ..errors import InputError


class _Plain:
    """As it is."""

    codec: Codec | None = None

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """What is sent instead, and what `decompress` has to know."""
        return tensor, tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What came, as what was passed."""
        return tensor.to(dtype)


class _Half(_Plain):
    """As float16. Gradients of optimizers are encoded on their way: they are summed, and come back, as float32."""

    codec = Float16()

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype


class Compression:
    """`Compression.none` and `Compression.fp16`. Every codec of Gradwire's is an optimizer's `codec=…`."""

    none = _Plain()
    fp16 = _Half()


def codec_of(compression: object, codec: Codec | None) -> Codec | None:
    """The codec of what a script passed."""
    if codec is not None or compression is None:
        return codec
    if not isinstance(compression, _Plain):
        raise InputError(
            f"{compression!r} is no compression; pass Compression.none or Compression.fp16, a codec as codec=…, and a "
            "client as client=…",
            "compression",
        )
    return compression.codec
