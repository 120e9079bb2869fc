"""A task module that opens a connection and starts a thread, so that it cannot be forked.

With HASTY_WORKER it does so only in the worker, otherwise in new interpreters as well.
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
