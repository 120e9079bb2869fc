"""Arguments and results as JSON: written and read by what the function's signature declares, never by what is written.

Nothing on the wire names a class, so whoever can write into the table can choose values, not code. ``arguments`` and
``envelopes`` are the two codecs; ``annotations`` turns a declared type into a shape, and the other rooms hold the shapes.
"""

from __future__ import annotations

from horsies_django.core.codec.annotations import UnsupportedType, shape_of
from horsies_django.core.codec.arguments import ArgumentsCodec
from horsies_django.core.codec.envelopes import ResultCodec, encode_error, printable
from horsies_django.core.codec.shapes import CodecError, Shape

__all__ = [
    "ArgumentsCodec",
    "CodecError",
    "ResultCodec",
    "Shape",
    "UnsupportedType",
    "encode_error",
    "printable",
    "shape_of",
]
