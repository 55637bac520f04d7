"""Compression of gradients, under the names that BytePS scripts use."""

from __future__ import annotations

import torch

from ..codecs import Codec, Float16
from ..errors import InputError


class _Plain:
    """No compression."""

    codec: Codec | None = None

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Returns the tensor to send, and the context for `decompress`."""
        return tensor, tensor.dtype

    def decompress(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Converts the received tensor to the type of the original one."""
        return tensor.to(dtype)


class _Half(_Plain):
    """Compression to float16. Gradients of optimizers are compressed only while they are sent: servers sum and return
    float32."""

    codec = Float16()

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype


class Compression:
    """`Compression.none` and `Compression.fp16`. Pass any other codec of Gradwire as `codec=…` of an optimizer."""

    none = _Plain()
    fp16 = _Half()


def codec_of(compression: object, codec: Codec | None) -> Codec | None:
    """Returns the codec for the `compression` argument of a script."""
    if codec is not None or compression is None:
        return codec
    if not isinstance(compression, _Plain):
        raise InputError(
            f"invalid compression {compression!r}: pass Compression.none or Compression.fp16; pass a codec as codec=…, and a "
            "client as client=…",
            "compression",
        )
    return compression.codec
