"""What a worker does beside its engine: heartbeats, rescue, retention, snapshots, a watchdog, and answers to probes."""
