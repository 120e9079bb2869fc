"""Fixtures of the storms."""

from __future__ import annotations

from tests.support.workers import scheduler as scheduler
from tests.support.workers import server as server
from tests.support.workers import standing_server as standing_server
from tests.support.workers import worker as worker
