"""Why the demo cannot go on."""

from __future__ import annotations


class DemoFailed(Exception):  # noqa: N818 - it is the demo that failed
    """Something did not come about; the message says what."""
