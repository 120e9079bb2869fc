"""The test project with Sentry: its events become lines of the file HORSIES_TEST_NOTES, or go to
HORSIES_TEST_COLLECTOR.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any
from urllib.request import urlopen

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from horsies_django import signals
from horsies_django.contrib.sentry import HorsiesIntegration
from tests.settings import *  # noqa: F403
from tests.settings import HORSIES

HORSIES = {**HORSIES, "METADATA": ["horsies_django.contrib.sentry.trace"]}


class FileTransport(Transport):
    """Appends each event to the file, with the process that captured it."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event: Any = envelope.get_event()
        if event is not None:
            line = json.dumps({"process": os.getpid(), **event}, default=str)
            with open(os.environ["HORSIES_TEST_NOTES"], "a") as file:
                file.write(f"{line}\n")


def tell(path: str, /, signal: Any, **kwargs: Any) -> None:
    """Post the name of a signal to the host of Sentry: before and after its integration acts."""
    urlopen(f"http://{os.environ['HORSIES_TEST_COLLECTOR']}{path}", signal.name.encode()).close()


def told(path: str) -> None:
    if name := os.environ.get("HORSIES_TEST_TELLS"):
        getattr(signals, name).connect(partial(tell, path), weak=False)


told("/now")
if address := os.environ.get("HORSIES_TEST_COLLECTOR"):
    sentry_sdk.init(f"http://key@{address}/1", integrations=[HorsiesIntegration()])
else:
    sentry_sdk.init(
        "http://key@127.0.0.1/1", transport=FileTransport, integrations=[HorsiesIntegration()]
    )
told("/later")
