"""The configuration that makes the calls fail in every process of the project.

All of them are forks of the worker's process.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.apps import AppConfig

from horsies_django.signals import child_started

ERRORS: dict[str, Exception] = {
    "fork": BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
    "pipe": OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "socketpair": OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "thread": RuntimeError("can't start new thread"),
}


def lacks(name: str) -> bool:
    """Return whether the file names that call at this moment."""
    try:
        return name in Path(os.environ["CRAMPED"]).read_text().split()
    except FileNotFoundError:
        return False


def failing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        if lacks(name):
            raise ERRORS[name]
        return call(*args, **kwargs)

    return called


def middleware(call: Callable[..., Any]) -> Callable[..., Any]:
    if lacks("service"):
        raise ConnectionError("the service is away")
    return call


def wait_for_an_answer(**kwargs: Any) -> None:
    if lacks("answer"):
        threading.Event().wait()


class Config(AppConfig):
    """The app, which replaces functions of the standard library."""

    name = "tests.apps.cramped"

    def ready(self) -> None:
        os.fork = failing("fork", os.fork)
        os.pipe = failing("pipe", os.pipe)
        socket.socketpair = failing("socketpair", socket.socketpair)
        threading.Thread.start = failing("thread", threading.Thread.start)  # type: ignore[method-assign]
        child_started.connect(wait_for_an_answer)
