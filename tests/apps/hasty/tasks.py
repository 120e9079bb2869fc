"""A task module that cannot be forked: with HASTY_WORKER, only in the worker, else in fresh
interpreters, too.
"""

from __future__ import annotations

import multiprocessing
import os
import threading

from django.db import connection

if multiprocessing.parent_process() is None or "HASTY_WORKER" not in os.environ:
    connection.ensure_connection()
    thread = threading.Thread(target=threading.Event().wait, name="hasty-thread", daemon=True)
    thread.start()
