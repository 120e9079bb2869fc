"""A task module whose import never ends in the process that SLOW_IMPORT names, while the file
SLOW_WHILE is there, if named.
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
