"""Who runs a command."""

from __future__ import annotations

import getpass
import socket


def actor() -> str:
    """Return the name for the audit. In a container, the user may have no login name."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError, ImportError):
        login = "unknown"
    return f"shell:{login}@{socket.gethostname()}"
