"""A browser with the few features that the demo needs: cookies, forms and files."""

from __future__ import annotations

import re
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from http.cookiejar import CookieJar
from typing import NamedTuple

from example_project.demo.problems import DemoFailed

TIMEOUT_SECONDS = 30
TAGS = re.compile(r"<[^>]*>")


class Part(NamedTuple):
    """One file of a form."""

    field: str
    name: str
    content: bytes


class Browser:
    """A browser of one site, which is logged in after a call of ``log_in``.

    Its methods raise DemoFailed if a page is not served.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.cookies = CookieJar()
        # No proxy, because one that the environment names cannot reach the loopback address of this
        # machine.
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(self.cookies)
        )

    def get(self, path: str, **query: str) -> str:
        """Fetch a page and return its HTML."""
        return self._open(f"{path}?{urllib.parse.urlencode(query)}" if query else path)

    def post(self, path: str, fields: dict[str, str], files: Iterable[Part] = ()) -> str:
        """Send a form and return the page that it leads to."""
        token = next((cookie.value for cookie in self.cookies if cookie.name == "csrftoken"), None)
        boundary = secrets.token_hex(16)
        body = encode_form({**fields, "csrfmiddlewaretoken": token or ""}, files, boundary)
        return self._open(path, body, f"multipart/form-data; boundary={boundary}")

    def log_in(self, username: str, password: str) -> None:
        """Log in by the form of the admin.

        Raises DemoFailed if the site refuses the login.
        """
        self.get("/admin/login/")
        self.post("/admin/login/", {"username": username, "password": password, "next": "/"})
        if not any(cookie.name == "sessionid" for cookie in self.cookies):
            raise DemoFailed(
                f"the site does not let {username!r} log in with the password of this run"
            )

    def _open(self, path: str, body: bytes | None = None, content_type: str | None = None) -> str:
        request = urllib.request.Request(self.address + path, data=body)
        if content_type:
            request.add_header("Content-Type", content_type)

        try:
            with self.opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return str(answer.read().decode("utf-8"))
        except urllib.error.HTTPError as error:
            page = " ".join(TAGS.sub(" ", error.read().decode("utf-8", "replace")).split())
            raise DemoFailed(
                f"{error.url} answered with status {error.code}: {page[:500]}"
            ) from error
        except OSError as error:
            raise DemoFailed(f"{self.address}{path} did not answer: {error}") from error


def encode_form(fields: dict[str, str], files: Iterable[Part], boundary: str) -> bytes:
    """Return a form as multipart/form-data."""
    parts = [(f'name="{name}"', value.encode()) for name, value in fields.items()]
    parts += [
        (f'name="{file.field}"; filename="{quoted(file.name)}"', file.content) for file in files
    ]
    body = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {what}\r\n\r\n".encode()
        + content
        + b"\r\n"
        for what, content in parts
    )
    return body + f"--{boundary}--\r\n".encode()


def quoted(name: str) -> str:
    """Return the name of a file, escaped for the quotes in a header."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
