"""The codecs in which chunks of tensors are stored, and the entropy coder that they share."""

from etude.weights.codecs.chunk import NEED_BASE, Codec, changed, decode, encode

__all__ = ["NEED_BASE", "Codec", "changed", "decode", "encode"]
