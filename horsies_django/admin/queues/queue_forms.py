"""The form that overrides the limits of a queue."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.change_forms import ChangeForm
from horsies_django.admin.base.definitions import LEVELS, label_of_limit, shown_limit
from horsies_django.conf import LARGEST_LIMIT
from horsies_django.core.queues import CLUSTER

NOT_OVERRIDDEN = object()


class LimitField(forms.CharField):
    """A limit: empty means NOT_OVERRIDDEN, ``none`` means None, no limit."""

    widget = forms.TextInput(attrs={"class": "vIntegerField", "inputmode": "numeric", "autocomplete": "off"})

    def __init__(self, *, lowest: int, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)
        self.lowest = lowest

    def clean(self, value: Any) -> Any:
        """Return the limit. Raises ValidationError unless it is a number in range, ``none``, or empty."""
        text = super().clean(value).lower()
        if not text:
            return NOT_OVERRIDDEN
        if text == "none":
            return None
        number = int(text) if re.fullmatch(r"[0-9]{1,10}", text) else -1
        if not self.lowest <= number <= LARGEST_LIMIT:
            raise forms.ValidationError(
                _("Enter a whole number from %(low)s to %(high)s, “none” for no limit, or leave it empty.")
                % {"low": self.lowest, "high": f"{LARGEST_LIMIT:,}"}
            )
        return number


class EndInput(forms.DateTimeInput):
    """A datetime to the second. An unchanged value keeps its microseconds and offset, which the field cannot show.

    ``held`` is the value when the form was opened. A hidden input keeps it, because the stored value may change meanwhile.
    """

    def __init__(self) -> None:
        super().__init__(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")
        self.held: dt.datetime | None = None

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> Any:
        """Return ``held`` if the field was not changed, else the entered value."""
        written, held = data.get(name), _moment(data.get(f"{name}_held", ""))
        if held is not None and isinstance(written, str) and _moment(written) == _shown(held):
            return held.isoformat()
        return written

    def format_value(self, value: Any) -> str | None:
        """Return the datetime as the browser expects it, in the current time zone."""
        moment = _moment(value) if isinstance(value, str) else value
        return f"{_shown(moment):{self.format}}" if isinstance(moment, dt.datetime) else super().format_value(value)

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """Return the field and the hidden input."""
        shown = super().render(name, value, attrs, renderer)
        if self.held is None:
            return shown
        return format_html('{}<input type="hidden" name="{}_held" value="{}">', shown, name, self.held.isoformat())


def _moment(text: object) -> dt.datetime | None:
    """Return the datetime in a text, None if there is none, or none that also exists in all other time zones."""
    try:
        found = parse_datetime(str(text))
    except ValueError:
        return None
    return found if found and dt.MINYEAR < found.year < dt.MAXYEAR else None


def _shown(moment: dt.datetime) -> dt.datetime:
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.replace(tzinfo=None, microsecond=0, fold=0)


class OverrideForm(ChangeForm):
    """Overrides the declared limits. A new override replaces the old one as a whole."""

    max_concurrency = LimitField(lowest=0)
    local_limit = LimitField(lowest=1)
    partition_max_concurrency = LimitField(lowest=1)
    partition_local_limit = LimitField(lowest=1)
    until = forms.DateTimeField(label=gettext_lazy("Until"), required=False, widget=EndInput)
    field_order = (*LEVELS, "reason", "until")

    def __init__(self, *args: Any, row: Any, **kwargs: Any) -> None:
        super().__init__(*args, row=row, **kwargs)
        zone = timezone.get_current_timezone_name()
        self.fields["until"].help_text = _(
            "Leave it empty to keep the override until it is cleared. Time zone: %(zone)s."
        ) % {"zone": zone}
        self.initial["until"] = row.override_until
        widget = self.fields["until"].widget
        assert isinstance(widget, EndInput)
        widget.held = _moment(self.data.get("until_held", "")) if self.is_bound else row.override_until
        override = row.override if isinstance(row.override, dict) else {}
        for key in LEVELS:
            field = self.fields[key]
            field.label = label_of_limit(key).capitalize()
            declared = _("Declared: %(limit)s.") % {"limit": shown_limit(getattr(row, key))}
            field.help_text = f"{declared} {_('0 lets no task start.')}" if key == "max_concurrency" else declared
            if key in override:
                self.initial[key] = "none" if override[key] is None else override[key]
            if row.name == CLUSTER and key != "max_concurrency":
                del self.fields[key]

    def clean_until(self) -> dt.datetime | None:
        """Refuse the last year that Python supports: in another time zone the end could be in the year 10000."""
        until: dt.datetime | None = self.cleaned_data["until"]
        if until is not None and until.year >= dt.MAXYEAR:
            raise forms.ValidationError(_("This is too far in the future. Leave it empty for no end."))
        return until

    def clean(self) -> dict[str, Any]:
        """Refuse an override without limits."""
        if not self.errors and not self._limits():
            raise forms.ValidationError(_("Enter at least one limit. To end an override, clear it instead."))
        return self.cleaned_data

    def apply(self) -> Any:
        until = self.cleaned_data["until"]
        if until is not None and timezone.is_naive(until):  # USE_TZ is off
            until = timezone.make_aware(until)
        return super().apply(self._limits(), until=until)

    def _limits(self) -> dict[str, int | None]:
        given = {key: self.cleaned_data.get(key, NOT_OVERRIDDEN) for key in LEVELS}
        return {key: limit for key, limit in given.items() if limit is not NOT_OVERRIDDEN}
