"""Compression of float32 tensors, under the names that scripts for Horovod and BytePS use."""

from __future__ import annotations

from typing import Any

from ..codecs import Codec, Float16
from ..errors import InputError


class _Way:
    """A codec, or none."""

    def __init__(self, codec: Codec | None) -> None:
        self.codec = codec


class Compression:
    """`Compression.none`, and `Compression.fp16`: values are float16 while they are sent, and servers sum them in float32."""

    none = _Way(None)
    fp16 = _Way(Float16())


def codec_of(compression: Any) -> Codec | None:
    """Returns the codec for a `compression` argument."""
    if compression is None or isinstance(compression, Codec):
        return compression
    if not isinstance(compression, _Way):
        raise InputError(
            f"invalid compression {compression!r}: pass Compression.none, Compression.fp16 or a codec such as gradwire.TopK()",
            "compression",
        )
    return compression.codec
