"""The worker's own log handler, for projects that did not configure one."""

from __future__ import annotations

import logging

FORMAT = "[%(asctime)s] [%(component)s] [%(levelname)s] %(message)s"


class Formatter(logging.Formatter):
    """Lines such as ``[12:00:01] [worker] [INFO] message``."""

    def __init__(self) -> None:
        super().__init__(FORMAT, datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.component = record.name.removeprefix("horsies.")
        return super().format(record)


def configure_logging(level: str) -> None:
    """Set the level of the "horsies" loggers; write them to stderr when no handler would see them."""
    logger = logging.getLogger("horsies")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(Formatter())
        logger.addHandler(handler)
