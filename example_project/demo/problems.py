"""The error that ends the demo."""

from __future__ import annotations


class DemoFailed(Exception):  # noqa: N818 - it is the demo that failed
    """A step of the demo failed; the message names it."""
