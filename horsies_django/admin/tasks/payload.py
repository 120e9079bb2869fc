"""Arguments, results and tracebacks, for users with ``horsies.view_payload``.

They are shown as the stored JSON. No code of the project is imported, so the page works even if the task's module does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy

from horsies_django.admin.base.html import (
    NOTHING,
    block,
    json_block,
    moment_field,
    payload_note,
)
from horsies_django.core.codec.plain import named_arguments
from horsies_django.models import Task

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Task]
else:
    Base = object


class PayloadMixin(Base):
    """Adds the payload of a task to its page, or a note about the required permission."""

    def has_view_payload_permission(self, request: HttpRequest) -> bool:
        """Whether the user may see arguments, results, error messages and tracebacks."""
        return request.user.has_perm("horsies.view_payload")

    def payload_fieldsets(self, request: HttpRequest, obj: Task | None) -> tuple[Any, ...]:
        """Return the fields that the task has and the user may see."""
        title = gettext_lazy("Arguments and result")
        fields = ["redacted"] if obj is not None and obj.redacted_at is not None else []
        if obj is None or not self.has_view_payload_permission(request):
            return ((title, {"fields": (*fields, "hidden_payload")}),)
        fields += ["shown_arguments"]
        if error := _error(obj):
            fields += ["shown_error"]
            fields += ["shown_error_data"] if error.get("data") is not None else []
            fields += ["shown_traceback"] if _exception(obj).get("traceback") else []
        else:
            fields += ["shown_result"]
        fields += ["shown_metadata"] if _metadata(obj) is not None else []
        fields += ["shown_options"] if _other_options(obj) is not None else []
        fields += ["partition_key"] if obj.partition_key is not None else []
        return ((title, {"fields": tuple(fields)}),)

    redacted = moment_field(Task, "redacted_at")

    @admin.display(description=gettext_lazy("hidden"))
    def hidden_payload(self, obj: Task) -> SafeString:
        """Return a note about the required permission."""
        return payload_note()

    @admin.display(description=gettext_lazy("arguments"))
    def shown_arguments(self, obj: Task) -> SafeString:
        return json_block(obj.kwargs if obj.codec is None else named_arguments(obj.kwargs))

    @admin.display(description=gettext_lazy("result"))
    def shown_result(self, obj: Task) -> SafeString | str:
        envelope: Any = obj.result
        if envelope is None:
            return NOTHING
        if isinstance(envelope, dict) and envelope.get("kept") is False:
            return gettext("not kept")
        return json_block(envelope["ok"] if isinstance(envelope, dict) and "ok" in envelope else envelope)

    @admin.display(description=gettext_lazy("error"))
    def shown_error(self, obj: Task) -> SafeString:
        """Return the message of the error, or else its exception or code."""
        error, exception = _error(obj), _exception(obj)
        return block(str(error.get("message") or exception.get("repr") or error.get("error_code") or NOTHING))

    @admin.display(description=gettext_lazy("error data"))
    def shown_error_data(self, obj: Task) -> SafeString:
        return json_block(_error(obj).get("data"))

    @admin.display(description=gettext_lazy("traceback"))
    def shown_traceback(self, obj: Task) -> SafeString:
        return block(str(_exception(obj).get("traceback")))

    @admin.display(description=gettext_lazy("options"))
    def shown_options(self, obj: Task) -> SafeString:
        """Return the options with which the task was sent, but its metadata."""
        return json_block(_other_options(obj))

    @admin.display(description=gettext_lazy("metadata"))
    def shown_metadata(self, obj: Task) -> SafeString:
        return json_block(_metadata(obj))


def _error(obj: Task) -> dict[str, Any]:
    """Return the error in the stored result, {} if there is none. The stored JSON may have any shape."""
    error = obj.result.get("err") if isinstance(obj.result, dict) else None
    return error if isinstance(error, dict) else {}


def _metadata(obj: Task) -> Any:
    return obj.options.get("metadata") if isinstance(obj.options, dict) else None


def _other_options(obj: Task) -> Any:
    """Return the options without the metadata, None if there are no others."""
    if _metadata(obj) is None:
        return obj.options
    return {name: value for name, value in obj.options.items() if name != "metadata"} or None


def _exception(obj: Task) -> dict[str, Any]:
    exception = _error(obj).get("exception")
    return exception if isinstance(exception, dict) else {}
