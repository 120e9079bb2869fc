"""The codecs, which encode arguments and results as JSON by the annotations of the function.

The JSON never contains the name of a class. So users who can write to the table can choose values,
but cannot choose the code that runs.

- ``arguments`` and ``envelopes`` are the two codecs, and ``plain`` those of functions without
  annotations.
- ``annotations`` turns an annotation into a shape.
- ``jsondata`` checks plain data and writes its text.
- The other modules contain the shapes.
"""

from __future__ import annotations

from horsies_django.core.codec.annotations import UnsupportedType, shape_of
from horsies_django.core.codec.arguments import ArgumentsCodec
from horsies_django.core.codec.envelopes import ResultCodec, encode_error, printable
from horsies_django.core.codec.errors import CodecError
from horsies_django.core.codec.plain import PLAIN_CODEC, PlainArguments, PlainResult
from horsies_django.core.codec.shapes import Shape

__all__ = [
    "PLAIN_CODEC",
    "ArgumentsCodec",
    "CodecError",
    "PlainArguments",
    "PlainResult",
    "ResultCodec",
    "Shape",
    "UnsupportedType",
    "encode_error",
    "printable",
    "shape_of",
]
