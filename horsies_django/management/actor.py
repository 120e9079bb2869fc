"""Who runs a command."""

from __future__ import annotations

import getpass
import socket


def actor() -> str:
    """Return who does this, as the audit names them; a user without an entry has a number only, in containers for instance."""
    try:
        login = getpass.getuser()
    except (KeyError, OSError, ImportError):
        login = "unknown"
    return f"shell:{login}@{socket.gethostname()}"
