"""The configuration that connects receivers when the app is ready, in every process."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

from django.apps import AppConfig

from horsies_django import signals

GATE = threading.Event()  # it is never set


class Config(AppConfig):
    """The app, whose receivers write each signal as a line to the file of HORSIES_TEST_NOTES."""

    name = "tests.apps.hooked"

    def ready(self) -> None:
        for name in signals.__all__:
            signal = getattr(signals, name)
            signal.connect(partial(misbehave, name), weak=False)
            signal.connect(partial(write_down, name), weak=False)


def write_down(name: str, /, sender: Any, signal: Any, **values: Any) -> None:
    """Append the values that a receiver got to the file, with the process and the thread."""
    where = {"signal": name, "process": os.getpid(), "thread": threading.current_thread().name}
    about = None if sender is None else sender.origin
    if metadata := values.pop("metadata", None):
        values["metadata"] = dict(metadata)
    line = json.dumps({**where, "sender": about, **values}, default=str)

    descriptor = os.open(os.environ["HORSIES_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def misbehave(name: str, /, **values: Any) -> None:
    """Do the harm that a file with the name of the signal contains; without the file do none."""
    order = Path(f"{os.environ['HORSIES_TEST_NOTES']}.{name}")
    harm = order.read_text() if order.exists() else ""

    if harm == "raise":
        raise LookupError("the project's receiver")
    if harm == "exit":
        raise SystemExit(3)
    if harm == "hang":
        GATE.wait()
