"""Fits text into boxes. SVG does not wrap text, and the server does not know the browser's font, so widths are estimated."""

from __future__ import annotations

import re
import unicodedata

# Hundredths of the size of the font.
WIDTHS = {
    **dict.fromkeys("ijl.,:;'|!()[] ", 32),
    **dict.fromkeys('ftr-I/\\"', 40),
    **dict.fromkeys("mwMW@%&…", 94),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ_", 70),
}
USUAL, WIDE = 60, 100
ELLIPSIS = "…"


def width(text: str) -> int:
    """Return the estimated width of a text, in hundredths of the size of its font; rather too much than too little."""
    return sum(map(_width, text))


def cut(text: str, most: float) -> str:
    """Return a text, or its beginning and an ellipsis if it is wider than ``most``."""
    return text if width(text) <= most else _beginning(text, most - width(ELLIPSIS)).rstrip() + ELLIPSIS


def lines(text: str, most: float) -> list[str]:
    """Return a name in one line or two, broken after a space, a dot, a hyphen or an underscore where there is one."""
    text = " ".join(text.split())
    if width(text) <= most:
        return [text]
    first = ""
    for part in re.findall(r"[^\s._/:-]*[\s._/:-]?", text):
        if width((first + part).rstrip()) > most:
            break
        first += part
    first = first or _beginning(text, most)
    return [first.rstrip(), cut(text[len(first) :].lstrip(), most)]


def _beginning(text: str, most: float) -> str:
    for place, each in enumerate(text):
        most -= _width(each)
        if most < 0:
            return text[:place]
    return text


def _width(each: str) -> int:
    if unicodedata.combining(each):
        return 0
    return WIDE if unicodedata.east_asian_width(each) in "WF" else WIDTHS.get(each, USUAL)
