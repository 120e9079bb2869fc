"""The bare worker of ``benchmarks.bare``.

It claims each task of which it is notified, has another process begin it, and settles it.
"""

from __future__ import annotations

import selectors
import socket
import struct
import subprocess
import sys
import uuid
from typing import Any

import psycopg

MOMENT = struct.Struct("d")
CLAIM = """
UPDATE horsies_bare
SET status = 'RUNNING', claimed_by = %(worker)s,
    claimed_at = clock_timestamp(), started_at = clock_timestamp(),
    claim_generation = claim_generation + 1
WHERE id = ANY (ARRAY(
  SELECT id FROM horsies_bare
  WHERE queue_name = 'default' AND lane = 'sync'
    AND claimed_by IS NULL AND finished_at IS NULL AND NOT parked
  ORDER BY priority, enqueued_at, id LIMIT %(many)s FOR NO KEY UPDATE SKIP LOCKED))
RETURNING id
"""
SETTLE = """
UPDATE horsies_bare
SET status = 'COMPLETED', finished_at = clock_timestamp(), result = '{"ok": null}'
WHERE id = ANY (%(ids)s) AND claimed_by = %(worker)s
RETURNING id
"""
FINISH = (
    f"WITH settled AS ({SETTLE}) SELECT pg_notify('horsies_bare_done', %(began)s::text) FROM "
    "settled"
)
CHILD = """
import socket, struct, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
while end.recv(1):
    end.send(struct.pack("d", time.time()))
"""


def serve(connection: psycopg.Connection[Any]) -> None:
    """Run the bare worker until the standard input ends."""
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()

    connection.execute("LISTEN horsies_bare")
    # These are read while a statement runs, so the selector does not wake for them.
    missed: list[psycopg.Notify] = []
    connection.add_notify_handler(missed.append)

    worker = uuid.uuid4()
    selector = selectors.DefaultSelector()
    for end in (connection, sys.stdin):
        selector.register(end, selectors.EVENT_READ)

    while True:
        missed.clear()
        while claimed := connection.execute(CLAIM, {"worker": worker, "many": 4}).fetchall():
            ours.send(b".")
            (began,) = MOMENT.unpack(ours.recv(MOMENT.size))
            connection.execute(
                FINISH, {"worker": worker, "ids": [id_ for (id_,) in claimed], "began": repr(began)}
            )

        if missed:
            continue
        if any(key.fileobj is sys.stdin for key, _ in selector.select()):
            break
        list(connection.notifies(timeout=0))

    ours.close()
    child.wait()


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1], autocommit=True, prepare_threshold=0) as connected:
        serve(connected)
