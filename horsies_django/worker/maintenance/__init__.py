"""What a worker does beside its engine: heartbeats, rescue, retention, snapshots, a watchdog, and
the health server.
"""

from __future__ import annotations

# for which a job of the maintenance thread may go on, because the heartbeat waits for it
TURN_SECONDS = 0.3
