"""A task module whose import never ends in one kind of process.

SLOW_IMPORT names the kind, "worker" or "child". If SLOW_WHILE names a file, the import hangs only
if that file exists.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

here = "worker" if multiprocessing.parent_process() is None else "child"
gate = os.environ.get("SLOW_WHILE")
if here == os.environ.get("SLOW_IMPORT") and (gate is None or os.path.exists(gate)):
    print(f"importing in the {here}", file=sys.stderr, flush=True)
    threading.Event().wait()
