"""Keeps the event loop of a lane running, whatever the coroutines on it do to the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from horsies_django.worker import copies

logger = logging.getLogger("horsies.worker")


def run_to_the_end(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` on a loop of its own until it ends, as ``asyncio.run`` does, but until then.

    A coroutine that user code started beside its task breaks the loop by ``SystemExit`` or ``KeyboardInterrupt``, and any
    may call ``loop.stop()``: all tasks of the process would end for what one did. The loop takes up where it was.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        copies.keep_loop_from_copies(loop)
        serving = loop.create_task(main)
        while not serving.done():
            try:
                loop.run_until_complete(serving)
            except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
                if serving.done():
                    raise
                logger.error("a task broke the event loop by %r: it goes on", error)
