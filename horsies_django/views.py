"""Views for monitoring.

They respond to requests with the token of the settings, and to users with the permission to view
queues.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import psycopg
from django.contrib.auth.decorators import login_not_required
from django.db import Error, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.crypto import constant_time_compare
from django.utils.log import log_response
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from horsies_django.conf import config
from horsies_django.management.reports import as_json, as_record, is_healthy
from horsies_django.monitoring import METRICS_TYPE, NO_METRICS
from horsies_django.monitoring.health import examine, problems
from horsies_django.monitoring.reading import (
    MOST_WAITING_REQUESTS,
    SCRAPED_SECONDS,
    BusyError,
    Cached,
    status_connection,
)

UNREACHABLE = {
    "healthy": False,
    "error": "The database cannot be read. Run 'manage.py horsies_status' to see the reason.",
}

BUSY_JSON = {
    "healthy": False,
    "error": "Too many requests are waiting for the response. Try again in a second.",
}


class StatusResponse(NamedTuple):
    """The response of ``status``, as JSON text, and whether the system is healthy."""

    healthy: bool
    text: str


cached_responses: Cached[StatusResponse | psycopg.Error] = Cached(MOST_WAITING_REQUESTS)


def bears_token(request: HttpRequest) -> bool:
    """Return whether a request has the token HORSIES["MONITORING_TOKEN"].

    The tokens are compared in constant time.
    """
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token = config().monitoring_token
    return (
        bool(token) and scheme.lower() == "bearer" and constant_time_compare(given.strip(), token)
    )


def for_monitoring(
    view: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Return a form of a view that responds only to permitted requests.

    The response to other requests has the status 401 or 403. It has the status 503 if the database
    cannot be read, or if too many requests wait for it.
    """

    @functools.wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        # This does not read the user from the database yet. There is no user without
        # AuthenticationMiddleware.
        user = getattr(request, "user", None)

        try:
            if bears_token(request) or (user is not None and user.has_perm("horsies.view_queue")):
                return view(request)
            if user is not None and user.is_authenticated:
                return JsonResponse(
                    {"error": "The permission horsies.view_queue is required."}, status=403
                )
        except (psycopg.Error, Error):
            return unavailable(request, JsonResponse(UNREACHABLE))
        except BusyError:
            return unavailable(request, JsonResponse(BUSY_JSON))

        body = {"error": "A token, or a user with the permission horsies.view_queue, is required."}
        return JsonResponse(body, status=401, headers={"WWW-Authenticate": "Bearer"})

    # The view has no transaction (ATOMIC_REQUESTS), because none can be opened while the database
    # is away. LoginRequiredMiddleware must not redirect the request to the login page.
    return require_safe(never_cache(login_not_required(transaction.non_atomic_requests(guarded))))


def unavailable(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Set the status of a response to 503, log a warning, and return the response.

    Django would log an error, which would be mailed to ADMINS at every poll.
    """
    response.status_code = 503
    log_response(
        "Service Unavailable: %s", request.path, response=response, request=request, level="warning"
    )
    return response


@for_monitoring
def status(request: HttpRequest) -> HttpResponse:
    """Respond with the output of ``horsies_status --json``, which is at most a second old.

    The status is 200, or 503 if a problem is critical or the database cannot be read.
    """
    found = cached_responses.read("", read_state, SCRAPED_SECONDS)
    if isinstance(found, psycopg.Error):
        raise found
    response = HttpResponse(found.text, content_type="application/json")
    return response if found.healthy else unavailable(request, response)


def read_state() -> StatusResponse | psycopg.Error:
    """Return the state of the system, or the error if the database cannot be read.

    The error is returned so that it is cached like a state. Otherwise all requests that waited for
    the state would read it again, one after another.
    """
    try:
        with status_connection() as connection:
            found = examine(connection)
    except psycopg.Error as error:
        return error

    wrong = problems(found)
    return StatusResponse(is_healthy(wrong), as_json(as_record(found, wrong)))


@for_monitoring
def metrics(request: HttpRequest) -> HttpResponse:
    """Respond with the state of the system in the format of Prometheus.

    The status is 501 if prometheus-client is not installed.
    """
    if find_spec("prometheus_client") is None:
        return HttpResponse(NO_METRICS, content_type="text/plain; charset=utf-8", status=501)
    from horsies_django.monitoring.metrics import read_metrics

    return HttpResponse(read_metrics(status_connection), content_type=METRICS_TYPE)
