"""What a worker does beside its engine: heartbeats, rescue, retention, snapshots, a watchdog, and the health server."""
