"""The forms that add and edit a schedule.

A form writes only the keys that its user changed, so two users can edit two keys of a schedule at
the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget
from django.forms.fields import InvalidJSONInput
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django import schedules
from horsies_django.admin.base.change_forms import ChangeForm
from horsies_django.admin.base.html import LONGEST_FIELD, NO_VALUE
from horsies_django.admin.base.labels import (
    ARGUMENTS_KEY,
    CATCH_UP_LABELS,
    KEY_LABELS,
    OVERLAP_LABELS,
)
from horsies_django.conf import config
from horsies_django.core.patterns import PATTERN_EXAMPLES
from horsies_django.core.schedules import (
    CATCH_UP,
    OVERLAPS,
    SCHEDULE_KEYS,
    SUBSTITUTE_PATTERN,
    ScheduleConfig,
    read_definition,
)
from horsies_django.core.texts import LONGEST_NAME
from horsies_django.models import Schedule
from horsies_django.monitoring.overview import as_object
from horsies_django.tasks import registry

DEFAULTS = {
    **ScheduleConfig("", SUBSTITUTE_PATTERN).definition(),
    "task": None,
    "pattern": None,
    "overlap": "allow",
}
WIDE_FIELD = {"class": "vTextField", "autocomplete": "off"}
ARGUMENTS_HIDDEN = gettext_lazy(
    "The arguments do not fit the task. The permission horsies.view_payload is required to see "
    "and change them."
)


class ArgumentsField(forms.JSONField):
    """A field for a JSON object.

    JSON that cannot be read is an error of the form, which shows it as it was entered.
    """

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (ValueError, RecursionError):  # too many digits, or nested too deeply
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        return InvalidJSONInput(data or "")


def number_field(help_text: Any, *, required: bool = True) -> forms.IntegerField:
    return forms.IntegerField(
        widget=AdminIntegerFieldWidget, help_text=help_text, required=required
    )


class DefinitionForm(ChangeForm):
    """A form for the definition of a schedule, with a field for each key.

    Hidden inputs keep the values that the form was opened with.
    """

    task = forms.ChoiceField()
    pattern = forms.CharField(max_length=LONGEST_FIELD, widget=forms.TextInput(attrs=WIDE_FIELD))
    zone = forms.CharField(
        max_length=100,
        widget=forms.TextInput(attrs=WIDE_FIELD),
        help_text=gettext_lazy(
            "An IANA name, such as Europe/Istanbul. Times of day are local times of this zone."
        ),
    )
    kwargs = ArgumentsField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "class": "vLargeTextField", "spellcheck": "false"}),
        help_text=gettext_lazy("The task's arguments by name, as a JSON object."),
    )
    enabled = forms.BooleanField(required=False)
    queue = forms.TypedChoiceField(required=False, empty_value=None)
    priority = number_field(
        gettext_lazy("1 (first) to 100. Empty: the task's own."), required=False
    )
    good_for_ms = number_field(
        gettext_lazy(
            "Milliseconds. A task expires if it has not started this long after its fire time. "
            "Empty: no limit."
        ),
        required=False,
    )
    jitter_ms = number_field(
        gettext_lazy(
            "Milliseconds. Each task is delayed by up to this time. The delay of a fire time is "
            "always the same."
        )
    )
    overlap = forms.ChoiceField(
        help_text=gettext_lazy("The action at a fire time if the last task has not finished.")
    )
    catch_up = forms.ChoiceField(
        help_text=gettext_lazy(
            "The tasks to send for fire times that passed while no scheduler was running."
        )
    )
    most = number_field(gettext_lazy("With “send all”: the maximum number, the latest ones."))
    field_order = ("name", "task", "pattern", "zone", "kwargs", "enabled")

    def __init__(self, *args: Any, row: Any, **kwargs: Any) -> None:
        super().__init__(*args, row=row, **kwargs)
        self.held = as_object(row.definition) if row.name else {}

        for key in SCHEDULE_KEYS:
            self.fields[key].show_hidden_initial = True
            self.fields[key].label = str(KEY_LABELS[key]).capitalize()
            self.initial[key] = self.held.get(key, DEFAULTS[key])

        self.fields["pattern"].help_text = _("For example: %(examples)s.") % {
            "examples": "; ".join(PATTERN_EXAMPLES)
        }

        own = [("", _("the task's own"))]
        self._offer(
            "task",
            [] if self.initial["task"] else [("", NO_VALUE)],
            ((name, name) for name in registry.names()),
        )
        self._offer("queue", own, ((name, name) for name in sorted(config().queues)))
        self._offer("catch_up", [], ((key, CATCH_UP_LABELS[key]) for key in CATCH_UP))
        self._offer("overlap", [], ((key, OVERLAP_LABELS[key]) for key in OVERLAPS))

    def _offer(
        self, key: str, first: list[tuple[str, Any]], choices: Iterable[tuple[str, str | Promise]]
    ) -> None:
        """Set the choices of a field, including the current value even if no code declares it.

        Otherwise saving the form would change the value unnoticed.
        """
        field = self.fields[key]
        assert isinstance(field, forms.ChoiceField)

        offered = [*first, *choices]
        held = self.initial[key]
        if held is not None and held not in [value for value, _text in offered]:
            offered.append((str(held), _("%(name)s (not in the code)") % {"name": held}))

        field.choices = offered

    @property
    def fieldsets(self) -> list[tuple[Any, dict[str, Any]]]:
        """The groups of fields on the page."""
        groups = (
            (None, ("name", "task", "pattern", "zone", ARGUMENTS_KEY, "enabled")),
            (
                _("Options of the tasks"),
                ("queue", "priority", "good_for_ms", "jitter_ms", "overlap"),
            ),
            (_("Missed fire times"), ("catch_up", "most")),
            (None, ("reason",)),
        )
        return [
            (title, {"fields": [name for name in names if name in self.fields]})
            for title, names in groups
        ]

    def clean_kwargs(self) -> Any:
        """Return the arguments. An empty field means no arguments."""
        found = self.cleaned_data[ARGUMENTS_KEY]
        return {} if found is None else found

    def clean(self) -> dict[str, Any]:
        """Validate the definition that would be in force, and report each problem at its field."""
        cleaned = self.cleaned_data

        for key, problem in schedules.definition_problems(
            self.named, {**self.held, **self.altered()}, as_json=True
        ):
            if key in self.errors:
                continue

            if key == ARGUMENTS_KEY and key not in self.fields:
                self.add_error(None, ARGUMENTS_HIDDEN)
            else:
                self.add_error(key if key in self.fields else None, capfirst(problem))

        return cleaned

    @property
    def named(self) -> str:
        return str(self.row.name)

    def altered(self) -> dict[str, Any]:
        """Return the keys to write, with their new values.

        These are the keys that the user changed, and the keys whose current values are invalid.
        """
        changed = {*self.changed_data, *(key for key, _problem in read_definition(self.held)[1])}
        return {
            key: self.cleaned_data[key]
            for key in SCHEDULE_KEYS
            if key in changed and key in self.cleaned_data
        }


class EditForm(DefinitionForm):
    """A form that overrides keys of the definition."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.request.user.has_perm("horsies.view_payload"):
            del self.fields[ARGUMENTS_KEY]

    def apply(self) -> Any:
        """Write the changed values that are not in force yet."""
        changes = {
            key: value
            for key, value in self.altered().items()
            if key not in self.held or self.held[key] != value
        }
        return super().apply(changes) if changes else []


class AddForm(DefinitionForm):
    """A form that adds a schedule that the code does not declare."""

    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=LONGEST_NAME,
        widget=forms.TextInput(attrs=WIDE_FIELD),
    )

    @property
    def named(self) -> str:
        """The name that was entered. An invalid name has been reported already."""
        return str(self.cleaned_data.get("name", "-"))

    def clean_name(self) -> str:
        """Return the name. Raises ValidationError if a schedule of this name exists."""
        name: str = self.cleaned_data["name"]
        if Schedule.objects.using(config().database).filter(name=name).exists():
            raise forms.ValidationError(_("A schedule of this name already exists."))
        return name

    def altered(self) -> dict[str, Any]:
        return {key: self.cleaned_data[key] for key in SCHEDULE_KEYS if key in self.cleaned_data}

    def apply(self) -> Any:
        self.row = Schedule(name=self.named)
        return super().apply(self.altered())
