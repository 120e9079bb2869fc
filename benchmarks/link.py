"""A link to PostgreSQL with a delay of its own, like that to another zone of a data centre.

``python -m benchmarks.link HOST PORT MS`` prints the port at which it listens and passes on what it
reads, each piece MS milliseconds after it came, in both directions; it ends with its input. It is a
process of its own, so that it takes no time from the measuring process.

Each direction of a connection has two threads: one reads and notes when a piece is due, one sleeps
until then and sends. So any number of pieces is under way at once, up to 64 of 64 KiB: the delay
takes nothing from the bandwidth, and pieces keep their order. The threads sleep in the kernel, to
within some microseconds once its timer slack is off; an event loop on epoll would round each delay
up to a whole millisecond. Beside the delay a round trip costs the wake-ups of four threads, 0.1 to
0.3 ms. The handshake of TCP itself is not delayed.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

PIECE = 65_536
UNDER_WAY = 64
PR_SET_TIMERSLACK = 29

Pieces = queue.Queue[tuple[float, bytes]]  # the time when each piece is due; b"" is the end


@contextmanager
def far_away(url: str, ms: float) -> Iterator[str]:
    """Yield a URL by which the server of ``url`` is ``ms`` further away, in each direction.

    Raises RuntimeError.
    """
    parts = urlsplit(url)
    command = [
        sys.executable,
        "-m",
        "benchmarks.link",
        parts.hostname or "127.0.0.1",
        str(parts.port or 5432),
        str(ms),
    ]
    root = Path(__file__).parents[1]

    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        to_it = cast(IO[str], process.stdin)
        from_it = cast(IO[str], process.stdout)

        try:
            if not (port := from_it.readline().strip()):
                raise RuntimeError(f"the link did not start: {' '.join(command)}")

            credentials = parts.netloc.rpartition("@")[0]
            yield parts._replace(netloc=f"{credentials}@127.0.0.1:{port}").geturl()
        finally:
            to_it.close()


def serve(door: socket.socket, address: tuple[str, int], delay: float) -> None:
    """Link each client of ``door`` to ``address`` by a connection of its own."""
    while True:
        here, _ = door.accept()
        threading.Thread(target=join, args=(here, address, delay), daemon=True).start()


def join(here: socket.socket, address: tuple[str, int], delay: float) -> None:
    """Pass on the bytes from either side until both have ended."""
    with here, contextlib.suppress(OSError), socket.create_connection(address) as there:
        # Small pieces must not wait for larger ones.
        for end in (here, there):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        ways = [
            threading.Thread(target=carry, args=(*ends, delay))
            for ends in ((here, there), (there, here))
        ]

        for way in ways:
            way.start()
        for way in ways:
            way.join()


def carry(source: socket.socket, sink: socket.socket, delay: float) -> None:
    """Read pieces, and queue each to be delivered ``delay`` seconds after it came."""
    pieces: Pieces = queue.Queue(UNDER_WAY)
    delivery = threading.Thread(target=deliver, args=(pieces, sink))
    delivery.start()

    data = b"-"
    while data:
        try:
            data = source.recv(PIECE)
        except OSError:  # this side closed without an end of file
            data = b""
        pieces.put((time.monotonic() + delay, data))

    delivery.join()


def deliver(pieces: Pieces, sink: socket.socket) -> None:
    """Send each piece when it is due, and at the end close the other side for writing."""
    data = b"-"
    while data:
        due, data = pieces.get()
        time.sleep(max(0.0, due - time.monotonic()))

        # If the other side is gone, the bytes under way to it are lost, as on any link.
        with contextlib.suppress(OSError):
            sink.sendall(data) if data else sink.shutdown(socket.SHUT_WR)


def main(host: str, port: str, ms: str) -> None:
    """Serve until the input ends, which it also does when the parent process dies."""
    # The slack is in nanoseconds, for all threads; the default is 50,000.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)

    door = socket.create_server(("127.0.0.1", 0))
    threading.Thread(
        target=serve, args=(door, (host, int(port)), float(ms) / 1000), daemon=True
    ).start()

    print(door.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
