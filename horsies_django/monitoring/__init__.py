"""The state of queues, tasks, schedules, workers and the database.

The modules only read, without locks.
"""

from __future__ import annotations

NO_METRICS = "Metrics need prometheus-client: pip install 'horsies-django[prometheus]'\n"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
