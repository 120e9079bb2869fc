"""The maintenance jobs of a worker: heartbeats, rescue, retention, watchdog and health server."""

from __future__ import annotations

# the longest time of one turn of a maintenance job, because the heartbeat waits for it
TURN_SECONDS = 0.3
