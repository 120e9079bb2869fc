"""Messages between the engine and a lane of an executor.

The executor runs in a child, or in a thread of the same process.
"""

from __future__ import annotations

import io
import pickle
import select
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

HEADER = struct.Struct("!2sI")  # of a frame: MARK, and the length of the message
MARK = b"h2"
# glibc maps new memory for each larger buffer, which takes longer than most reads
READ_BYTES = 1 << 16
CONGESTED_BYTES = 1 << 24
# the kind of the last message of a channel on which other data than messages has arrived
ODD = "odd"


class PlainUnpickler(pickle.Unpickler):
    """An unpickler for values of Python's own types.

    It refuses classes and functions, with which a message could run code here.
    """

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the message contains {module}.{name}")


class Channel:
    """One end of a socket pair, over which pickled plain values are sent in frames.

    Sending never blocks.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.end = end
        self.unread = bytearray()
        self.unsent: deque[memoryview] = deque()
        # whether much data is unsent, because the peer has not read earlier data
        self.congested = False
        # whether other data than messages has arrived, after which no more data is read
        self.odd = False

    def fileno(self) -> int:
        return self.end.fileno()

    def send(self, message: Any) -> None:
        """Send as much of a message as the socket accepts now, and keep the rest for ``flush``."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self.unsent.append(memoryview(HEADER.pack(MARK, len(body)) + body))
        self.flush()

    def flush(self) -> bool:
        """Send unsent data; return whether all data is sent.

        If the peer is gone, all data is discarded.
        """
        while self.unsent:
            try:
                sent = self.end.send(self.unsent[0])
            except (BlockingIOError, InterruptedError):
                self.congested = sum(map(len, self.unsent)) > CONGESTED_BYTES
                return False
            except OSError:
                self.unsent.clear()  # the death of the peer is handled elsewhere
                break

            if sent < len(self.unsent[0]):
                self.unsent[0] = self.unsent[0][sent:]
            else:
                self.unsent.popleft()

        self.congested = False
        return True

    def receive(self) -> list[Any]:
        """Return the complete messages that have arrived.

        If other data has arrived, the last message is (ODD, the reason), and no more follow. Raises
        EOFError if there are no messages and the other side is gone.
        """
        ended = False
        while True:
            try:
                data = self.end.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""

            ended = not data
            self.unread += data
            if len(data) < READ_BYTES:
                break

        messages = self._unpack()
        if ended and not messages:
            raise EOFError
        return messages

    def _unpack(self) -> list[Any]:
        messages = []
        start = 0
        if self.odd:
            self.unread.clear()

        while len(self.unread) - start >= HEADER.size:
            mark, size = HEADER.unpack_from(self.unread, start)
            end = start + HEADER.size + size
            if mark == MARK and len(self.unread) < end:
                break

            try:
                messages.append(self._message(mark, size, start + HEADER.size))
            except Exception as error:  # arbitrary bytes may make the unpickler raise any exception
                messages.append((ODD, f"{type(error).__name__}: {error}"))
                self.odd = True
                self.unread.clear()
                return messages

            start = end

        if start:
            del self.unread[:start]
        return messages

    def _message(self, mark: bytes, size: int, start: int) -> Any:
        if mark != MARK:
            raise ValueError(f"a frame cannot begin with {mark!r}")
        return PlainUnpickler(io.BytesIO(self.unread[start : start + size])).load()

    def close(self) -> None:
        self.end.close()


def wait_readable(files: Iterable[Any], seconds: float | None) -> bool:
    """Wait until one of ``files`` can be read; return whether one can be read.

    It waits ``seconds`` at most; None means without a limit.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1_000 * seconds))


def wait_receive(channel: Channel) -> list[Any]:
    """Wait for messages and return them.

    Raises EOFError if the other side is gone.
    """
    messages: list[Any] = []
    while not messages:
        wait_readable([channel], None)
        messages = channel.receive()
    return messages


def send_all(channel: Channel, message: Any) -> None:
    """Send a message and wait until it is sent completely."""
    channel.send(message)
    flush_all(channel)


def flush_all(channel: Channel) -> None:
    """Wait until all messages are sent completely."""
    while not channel.flush():
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLOUT)
        poll.poll()
