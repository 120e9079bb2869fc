"""Connects receivers as projects do: when the app is ready, in every process."""

from __future__ import annotations

import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

from django.apps import AppConfig

from horsies_django import signals

GATE = threading.Event()  # nobody opens it


class Config(AppConfig):
    """Writes each signal as a line of the file that HORSIES_TEST_NOTES names."""

    name = "tests.apps.hooked"

    def ready(self) -> None:
        for name in signals.__all__:
            signal = getattr(signals, name)
            signal.connect(partial(misbehave, name), weak=False)
            signal.connect(partial(write_down, name), weak=False)


def write_down(name: str, /, sender: Any, signal: Any, **values: Any) -> None:
    """Append what a receiver got to the file, with the process and the thread."""
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
    """Do the harm that a file named after the signal asks for; without one do none."""
    order = Path(f"{os.environ['HORSIES_TEST_NOTES']}.{name}")
    harm = order.read_text() if order.exists() else ""

    if harm == "raise":
        raise LookupError("the project's receiver")
    if harm == "exit":
        raise SystemExit(3)
    if harm == "hang":
        GATE.wait()
