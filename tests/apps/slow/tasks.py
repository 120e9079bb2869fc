"""A task module whose import never ends in the process that SLOW_IMPORT names, while the file SLOW_WHILE is there, if named."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

from horsies_django.worker.child import bootstrap

if multiprocessing.parent_process() is not None:
    here = "child"
elif bootstrap.state.pid is not None:
    here = "fork server"
else:
    here = "worker"
gate = os.environ.get("SLOW_WHILE")
if here == os.environ.get("SLOW_IMPORT") and (gate is None or os.path.exists(gate)):
    print(f"importing in the {here}", file=sys.stderr, flush=True)
    threading.Event().wait()
