"""A link between a worker and its server that a test may cut or freeze."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit


class Forwarder:
    """Passes bytes on between a worker and its server.

    After ``freeze`` it holds back the bytes of the connections that are open.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.door = socket.create_server(("127.0.0.1", 0))
        self.open: list[socket.socket] = []
        self.frozen: set[socket.socket] = set()
        self.apart = False  # whether new connections are turned away
        threading.Thread(target=self._welcome, daemon=True).start()

    def way(self, url: str) -> dict[str, str]:
        """Return the environment of a worker that reaches that database through this link."""
        parts = urlsplit(url)
        door = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self.door.getsockname()[1]}"
        return {"DATABASE_URL": parts._replace(netloc=door).geturl()}

    def freeze(self) -> None:
        """Hold back all bytes of the open connections from now on, without closing them."""
        self.frozen |= set(self.open)

    def cut(self) -> None:
        """Close all open connections; both sides notice."""
        for end in self.open:
            with contextlib.suppress(OSError):  # it ended earlier
                end.shutdown(socket.SHUT_RDWR)

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):  # the listening socket was closed
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
        with contextlib.suppress(OSError):  # the other end died with unread bytes
            while data := source.recv(65_536):
                if source not in self.frozen:
                    sink.sendall(data)

        if source not in self.frozen:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        # Closing alone would let the thread in accept() take one more connection.
        self.door.shutdown(socket.SHUT_RDWR)
        self.cut()  # wakes the threads that read, and the server notices it
        for end in (self.door, *self.open):
            end.close()
