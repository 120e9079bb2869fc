"""A link between a worker and its server that a test may cut, or let go silent."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit


class Forwarder:
    """Passes bytes on between a worker and its server, until told to keep those of the connections
    that are open.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.door = socket.create_server(("127.0.0.1", 0))
        self.open: list[socket.socket] = []
        self.frozen: set[socket.socket] = set()
        self.apart = False  # whether new connections are turned away
        threading.Thread(target=self._welcome, daemon=True).start()

    def way(self, url: str) -> dict[str, str]:
        """Return what a worker needs to reach the database of that URL through here."""
        parts = urlsplit(url)
        door = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self.door.getsockname()[1]}"
        return {"DATABASE_URL": parts._replace(netloc=door).geturl()}

    def freeze(self) -> None:
        """From now on nothing passes through the connections that are open, and nobody is told."""
        self.frozen |= set(self.open)

    def cut(self) -> None:
        """End all connections that are open now; both sides notice."""
        for end in self.open:
            with contextlib.suppress(OSError):  # it ended earlier
                end.shutdown(socket.SHUT_RDWR)

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):  # the door was closed
            while True:
                here, _ = self.door.accept()
                if self.apart:
                    here.close()
                    continue

                there = socket.create_connection(("127.0.0.1", self.port))
                self.open += [here, there]
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # who is killed with bytes unread resets its connection
            while data := source.recv(65_536):
                if source not in self.frozen:
                    sink.sendall(data)

        if source not in self.frozen:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        # Closing alone would let the thread in accept() welcome one more.
        self.door.shutdown(socket.SHUT_RDWR)
        self.cut()  # nor would it wake the threads that read, nor tell the server
        for end in (self.door, *self.open):
            end.close()
