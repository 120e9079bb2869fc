"""A small HTTP client that does not block the event loop.

It has the few parts of HTTP with which the library fetches pages of its own site.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 30


class FetchError(Exception):
    """The answer is not HTTP, or the address is not one of plain HTTP."""


class Response(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: bytes


async def fetch(url: str) -> Response:
    """Return the response to a request for ``url``, which begins with http://.

    Raises FetchError, OSError or TimeoutError if there is no valid response.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise FetchError(f"{url!r} is not an address of the form http://host/path")

    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    # HTTP/1.0, because then the answer is not sent in chunks, and ends with the connection.
    request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept-Encoding: identity\r\n\r\n"

    async with asyncio.timeout(TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
        try:
            writer.write(request.encode("ascii"))
            await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()

    return parse(answer)


def parse(answer: bytes) -> Response:
    """Return the status and the body of an answer.

    Raises FetchError if the answer is not HTTP, or if its length is not its Content-Length.
    """
    head, separator, body = answer.partition(b"\r\n\r\n")
    status_line, *headers = head.split(b"\r\n")
    words = status_line.split(None, 2)

    if (
        not separator
        or len(words) < 2
        or not words[0].startswith(b"HTTP/1.")
        or not words[1].isdigit()
    ):
        raise FetchError(f"the answer is not HTTP, it starts with {answer[:60]!r}")

    for header in headers:
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-length" and int(value) != len(body):
            raise FetchError(f"the answer ended after {len(body):,} of {int(value):,} bytes")

    return Response(int(words[1]), body)
