"""A task module that cannot be forked."""

from __future__ import annotations

import threading

from django.db import connection

connection.ensure_connection()
thread = threading.Thread(target=threading.Event().wait, name="hasty-thread", daemon=True)
thread.start()
