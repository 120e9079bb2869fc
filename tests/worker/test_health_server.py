"""What the probes say of the parts of a worker, over real HTTP: when it lives, when it is ready, and to rubbish."""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from horsies_django.conf import config
from horsies_django.core.errors import WorkerStartError
from horsies_django.worker.maintenance import health_server
from horsies_django.worker.maintenance.health_server import HealthServer, serving_health
from horsies_django.worker.maintenance.heartbeat import STUCK_SECONDS
from horsies_django.worker.process.options import WorkerOptions
from horsies_django.worker.supervisor import Supervisor
from tests.conftest import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def parts(transactional_db: None) -> Iterator[Supervisor]:
    """The parts of a worker that runs tasks itself, connected and ready, and its probes; no loop runs."""
    options = WorkerOptions(queues=("default",), processes=0, health_port=free_port())
    made = Supervisor(config(), options)
    with serving_health(options, lambda: made.engine):
        made.outbox.connect()
        made.pool.start()
        made.engine.trusted_until = math.inf
        wait_until(lambda: made.engine.turn(0.01) or made.pool.ready, "the pool is ready")
        made.engine.publish()
        yield made
    made.pool.stop()
    made.outbox.disconnect()
    made.kill_timer.disarm()
    made.engine.close()
    made.selector.close()


def ask(parts: Supervisor, path: str, method: str = "GET") -> tuple[int, Any]:
    client = http.client.HTTPConnection("127.0.0.1", parts.options.health_port, timeout=10)
    try:
        client.request(method, path)
        answer = client.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        client.close()


def test_a_worker_that_is_well_lives_and_is_ready_and_says_who_it_is(parts: Supervisor) -> None:
    for path in ("/live", "/ready", "/ready?verbose=1"):
        status, found = ask(parts, path)
        assert (status, found["ok"], found["reasons"], found["worker"]) == (200, True, [], str(parts.worker))


def test_an_engine_that_does_not_come_round_is_not_alive_until_it_does(parts: Supervisor) -> None:
    parts.engine.status = parts.engine.status._replace(busy_since=time.monotonic() - STUCK_SECONDS + 5)
    assert ask(parts, "/live")[0] == 200, "a turn may take its time"
    parts.engine.status = parts.engine.status._replace(busy_since=time.monotonic() - STUCK_SECONDS - 2)
    status, found = ask(parts, "/live")
    assert (status, found["ok"], len(found["reasons"])) == (503, False, 1)
    assert "been stuck for 12 s" in found["reasons"][0]
    assert ask(parts, "/ready")[0] == 503
    parts.engine.turn(0)
    assert parts.engine.status.busy_since is not None
    assert ask(parts, "/live")[0] == 200


def test_what_keeps_a_worker_from_being_ready_is_all_named_and_does_not_end_it(parts: Supervisor) -> None:
    parts.outbox.disconnect()
    parts.engine.trusted_until = time.monotonic() - 1
    parts.engine.stop()
    parts.engine.publish()
    for member in parts.pool.members:
        member.ready = False
    status, found = ask(parts, "/ready")
    assert status == 503
    assert [reason for reason in found["reasons"] if "0 of 1 processes" in reason]
    assert [reason for reason in found["reasons"] if "no connection to the database" in reason]
    assert [reason for reason in found["reasons"] if "no heartbeat" in reason]
    assert "the worker is stopping" in found["reasons"]
    assert ask(parts, "/live") == (200, {**found, "ok": True, "reasons": []})


def test_other_paths_are_not_found_and_a_head_has_no_body(parts: Supervisor) -> None:
    status, found = ask(parts, "/")
    assert (status, found) == (404, {"error": "there are only /live and /ready"})
    assert ask(parts, "/live/x")[0] == 404
    assert ask(parts, "/ready", "HEAD") == (200, None)


def test_a_client_that_says_nothing_keeps_nobody_waiting(parts: Supervisor) -> None:
    assert parts.options.health_port
    with socket.create_connection(("127.0.0.1", parts.options.health_port)) as silent:
        assert ask(parts, "/live")[0] == 200
        silent.sendall(b"\x16\x03\x01\xff\xfe\r\n\r\n")
        assert ask(parts, "/live")[0] == 200


def connected(parts: Supervisor) -> socket.socket:
    assert parts.options.health_port
    return socket.create_connection(("127.0.0.1", parts.options.health_port))


def cut_off(client: socket.socket, between: Callable[[], None]) -> bool:
    """Return whether the server ends a connection without an answer, while ``between`` is done again and again."""
    client.settimeout(0.1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            between()
            return client.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_a_client_that_sends_a_header_now_and_then_is_cut_off(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 1.0)
    with connected(parts) as slow:
        slow.sendall(b"GET /live HTTP/1.1\r\n")
        assert cut_off(slow, lambda: slow.sendall(b"X-Slow: 1\r\n"))
    assert ask(parts, "/live")[0] == 200


def test_a_client_that_sends_without_end_is_cut_off(parts: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 300.0)
    with connected(parts) as endless:
        endless.sendall(b"GET /live?" + b"x" * 6_000 + b" HTTP/1.1\r\n")
        assert cut_off(endless, lambda: endless.sendall(b"X-Long: " + b"y" * 400 + b"\r\n"))
    assert ask(parts, "/live")[0] == 200


def test_a_crowd_of_silent_clients_neither_keeps_a_probe_waiting_nor_a_thread_each(
    parts: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads() -> int:
        return sum("process_request_thread" in thread.name for thread in threading.enumerate())

    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 300.0)
    with ExitStack() as stack:
        for _ in range(150):
            last = stack.enter_context(connected(parts))
        last.sendall(b"GET /live HTTP/1.0\r\n")
        assert ask(parts, "/live")[0] == 200
        wait_until(lambda: threads() <= 16, "the others are cut off")
        last.sendall(b"\r\n")
        assert last.recv(12) == b"HTTP/1.0 200", "who came last is answered"


def test_a_port_in_use_is_named_and_the_address_may_be_of_ipv6() -> None:
    engine: Any = None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(WorkerStartError, match=f"--health-port: 127.0.0.1:{port} cannot be listened on"),
            serving_health(WorkerOptions(queues=(), processes=1, health_port=port), engine),
        ):
            raise AssertionError("nothing may start")
    with (
        pytest.raises(WorkerStartError, match="192.0.2.1"),
        serving_health(WorkerOptions(queues=(), processes=1, health_port=0, health_host="192.0.2.1"), engine),
    ):
        raise AssertionError("nothing may start")
    if socket.has_ipv6:
        try:
            server = HealthServer("::1", 0, engine)
        except OSError as error:
            pytest.skip(f"no IPv6 on the loopback interface: {error}")
        assert server.server_address[0] == "::1"
        server.server_close()
