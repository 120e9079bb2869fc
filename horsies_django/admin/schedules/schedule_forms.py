"""The forms that change a schedule; each makes its own change, and needs ``horsies.configure_queue``.

A form writes only what its user changed in it, so two people may edit two keys of a schedule at the same time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django import schedules
from horsies_django.admin.base.change_forms import (
    ADD,
    ChangeForm,
    ChangeMixin,
    Words,
)
from horsies_django.admin.base.definitions import ARGUMENTS, CATCH_UP, LABELS, OVERLAP
from horsies_django.admin.base.history import OF_SCHEDULES
from horsies_django.admin.base.html import LONGEST_NAME, NOTHING
from horsies_django.admin.base.readonly import ReadOnlyAdminMixin
from horsies_django.conf import config
from horsies_django.core.patterns import EXAMPLES
from horsies_django.core.schedules import CATCH_UP as POLICIES
from horsies_django.core.schedules import KEYS, UNREADABLE, ScheduleConfig, read_definition
from horsies_django.core.schedules import OVERLAP as OVERLAPS
from horsies_django.models import Schedule, Task
from horsies_django.monitoring.overview import as_object, changed_keys
from horsies_django.tasks import registry

DEFAULTS = {**ScheduleConfig("", UNREADABLE).definition(), "task": None, "pattern": None, "overlap": "allow"}
WIDE = {"class": "vTextField", "autocomplete": "off"}
NUMBER = {"class": "vIntegerField"}
HIDDEN = gettext_lazy(
    "Its arguments do not fit its task. You need the permission horsies.view_payload to see and change them."
)


class ScheduleForm(ChangeForm):
    """A change of one schedule."""

    row: Schedule


class RunNowForm(ScheduleForm):
    """Sends the task once."""

    action = "schedule.run_now"
    title = gettext_lazy("Run %(name)s now")
    button = gettext_lazy("Run now")
    explanation = gettext_lazy("Sends its task once, now. The fire times of the schedule do not change.")

    def apply(self, actor: str) -> list[str]:
        self.task_id = schedules.run_now(self.row.name, actor=actor, reason=self.why)
        return ["task_id"]


class EnableForm(ScheduleForm):
    """Lets the schedule fire."""

    action = "schedule.enable"
    title = gettext_lazy("Enable %(name)s")
    button = gettext_lazy("Enable")
    explanation = gettext_lazy("It fires from now on. Nothing is sent for the time while it was disabled.")

    def apply(self, actor: str) -> list[str]:
        return schedules.enable(self.row.name, actor=actor, reason=self.why)


class DisableForm(ScheduleForm):
    """Stops the schedule from firing."""

    action = "schedule.disable"
    title = gettext_lazy("Disable %(name)s")
    button = gettext_lazy("Disable")
    explanation = gettext_lazy("It does not fire until you enable it. Tasks that were sent are not affected.")

    def apply(self, actor: str) -> list[str]:
        return schedules.disable(self.row.name, actor=actor, reason=self.why)


class RevertForm(ScheduleForm):
    """Drops all changes of the schedule."""

    action = "schedule.revert"
    title = gettext_lazy("Revert %(name)s to the code")
    button = gettext_lazy("Revert to the code")
    explanation = gettext_lazy("Drops all changes, so that what the code declares is in force again.")

    def apply(self, actor: str) -> list[str]:
        return schedules.revert(self.row.name, actor=actor, reason=self.why)


class DeleteForm(ScheduleForm):
    """Deletes a schedule that no code declares."""

    action = "schedule.delete"
    title = gettext_lazy("Delete %(name)s")
    button = gettext_lazy("Delete")
    explanation = gettext_lazy(
        "No code declares it. Tasks that were sent are not affected; the audit keeps its definition."
    )
    deletes = True

    def apply(self, actor: str) -> list[str]:
        schedules.delete(self.row.name, actor=actor, reason=self.why)
        return ["name"]


class DefinitionForm(ScheduleForm):
    """A schedule's definition, a field for each key; hidden inputs keep the values that the form was opened with."""

    task = forms.ChoiceField(show_hidden_initial=True)
    pattern = forms.CharField(
        show_hidden_initial=True,
        max_length=LONGEST_NAME,
        widget=forms.TextInput(attrs=WIDE),
    )
    zone = forms.CharField(
        show_hidden_initial=True,
        max_length=100,
        widget=forms.TextInput(attrs=WIDE),
        help_text=gettext_lazy("An IANA name, such as Europe/Istanbul. Times of day are local times of this zone."),
    )
    kwargs = forms.JSONField(
        show_hidden_initial=True,
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "class": "vLargeTextField", "spellcheck": "false"}),
        help_text=gettext_lazy("The task's arguments by name, as a JSON object."),
    )
    enabled = forms.BooleanField(show_hidden_initial=True, required=False)
    queue = forms.TypedChoiceField(show_hidden_initial=True, required=False, empty_value=None)
    priority = forms.IntegerField(
        show_hidden_initial=True,
        required=False,
        widget=forms.NumberInput(attrs=NUMBER),
        help_text=gettext_lazy("1 (first) to 100. Empty: the task's own."),
    )
    good_for_ms = forms.IntegerField(
        show_hidden_initial=True,
        required=False,
        widget=forms.NumberInput(attrs=NUMBER),
        help_text=gettext_lazy(
            "Milliseconds. A task that has not started this long after its fire time expires. Empty: no limit."
        ),
    )
    jitter_ms = forms.IntegerField(
        show_hidden_initial=True,
        widget=forms.NumberInput(attrs=NUMBER),
        help_text=gettext_lazy(
            "Milliseconds. Each task is sent up to this much later; the delay of a fire time is always the same."
        ),
    )
    overlap = forms.ChoiceField(
        show_hidden_initial=True,
        help_text=gettext_lazy("What to do at a fire time while the last task that was sent has not finished."),
    )
    catch_up = forms.ChoiceField(
        show_hidden_initial=True,
        help_text=gettext_lazy("What to send for the fire times that passed while no scheduler was running."),
    )
    most = forms.IntegerField(
        show_hidden_initial=True,
        widget=forms.NumberInput(attrs=NUMBER),
        help_text=gettext_lazy("With “send all”: at most this many, the latest ones."),
    )
    field_order = ("name", "task", "pattern", "zone", "kwargs", "enabled")

    def __init__(self, *args: Any, row: Schedule, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, row=row, request=request, **kwargs)
        self.held = as_object(row.definition) if row.name else {}
        for key in KEYS:
            self.fields[key].label = str(LABELS[key]).capitalize()
            self.initial[key] = self.held.get(key, DEFAULTS[key])
        self.fields["pattern"].help_text = _("For example: %(examples)s.") % {"examples": "; ".join(EXAMPLES)}
        own = [("", _("the task's own"))]
        self._offer(
            "task", [] if self.initial["task"] else [("", NOTHING)], ((name, name) for name in registry.names())
        )
        self._offer("queue", own, ((name, name) for name in sorted(config().queues)))
        self._offer("catch_up", [], ((key, CATCH_UP[key]) for key in POLICIES))
        self._offer("overlap", [], ((key, OVERLAP[key]) for key in OVERLAPS))

    def _offer(self, key: str, first: list[tuple[str, Any]], choices: Iterable[tuple[str, str | Promise]]) -> None:
        """Offer choices and the current value, even if no code declares it: otherwise saving would change it unnoticed."""
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
            (None, ("name", "task", "pattern", "zone", ARGUMENTS, "enabled")),
            (_("How its tasks are sent"), ("queue", "priority", "good_for_ms", "jitter_ms", "overlap")),
            (_("Missed fire times"), ("catch_up", "most")),
            (None, ("reason",)),
        )
        return [(title, {"fields": [name for name in names if name in self.fields]}) for title, names in groups]

    def clean_kwargs(self) -> Any:
        """Return the arguments; an empty field means none."""
        found = self.cleaned_data[ARGUMENTS]
        return {} if found is None else found

    def clean(self) -> dict[str, Any]:
        """Validate the definition that would be in force, and report each problem at its field."""
        cleaned = self.cleaned_data
        for key, problem in schedules.problems(self.named, {**self.held, **self.altered()}, as_json=True):
            if key in self.errors:
                continue
            if key == ARGUMENTS and key not in self.fields:
                self.add_error(None, HIDDEN)
            else:
                self.add_error(key if key in self.fields else None, capfirst(problem))
        return cleaned

    @property
    def named(self) -> str:
        return self.row.name

    def altered(self) -> dict[str, Any]:
        """Return the keys that the user changed, with their new values, and the keys whose current values are invalid."""
        changed = {*self.changed_data, *(key for key, _problem in read_definition(self.held)[1])}
        return {key: self.cleaned_data[key] for key in KEYS if key in changed and key in self.cleaned_data}


class EditForm(DefinitionForm):
    """Overrides keys of the definition."""

    action = "schedule.change"
    title = gettext_lazy("Edit %(name)s")
    button = gettext_lazy("Save")
    way = gettext_lazy("Edit")
    explanation = gettext_lazy(
        "Your changes override what the code declares, until somebody reverts them. A new pattern or time zone, or enabling"
        " the schedule, takes effect from now on."
    )

    def __init__(self, *args: Any, row: Schedule, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, row=row, request=request, **kwargs)
        self.fields["reason"].required = True
        if not request.user.has_perm("horsies.view_payload"):
            del self.fields[ARGUMENTS]

    def apply(self, actor: str) -> list[str]:
        """Write what was changed and is not in force yet."""
        changes = {
            key: value for key, value in self.altered().items() if key not in self.held or self.held[key] != value
        }
        return schedules.change(self.row.name, changes, actor=actor, reason=self.why) if changes else []


class AddForm(DefinitionForm):
    """Adds a schedule that the code does not declare."""

    action = "schedule.create"
    title = gettext_lazy("Add a schedule")
    button = gettext_lazy("Add")
    explanation = gettext_lazy("Its task must exist in the code; the schedule itself is only in the database.")

    name = forms.CharField(
        label=gettext_lazy("Name"), max_length=schedules.LONGEST_NAME, widget=forms.TextInput(attrs=WIDE)
    )

    @property
    def named(self) -> str:
        """The name that was entered; if it is invalid, that has been reported already."""
        return str(self.cleaned_data.get("name", "-"))

    def clean_name(self) -> str:
        """Refuse the name of an existing schedule."""
        name: str = self.cleaned_data["name"]
        if Schedule.objects.using(config().database).filter(name=name).exists():
            raise forms.ValidationError(_("A schedule of this name already exists."))
        return name

    def altered(self) -> dict[str, Any]:
        return {key: self.cleaned_data[key] for key in KEYS if key in self.cleaned_data}

    def apply(self, actor: str) -> list[str]:
        schedules.create(self.named, self.altered(), actor=actor, reason=self.why)
        self.row = Schedule(name=self.named)
        return list(KEYS)


FORMS: dict[str, type[ChangeForm]] = {
    "run_now": RunNowForm,
    "enable": EnableForm,
    "disable": DisableForm,
    "edit": EditForm,
    "revert": RevertForm,
    "delete": DeleteForm,
    ADD: AddForm,
}


class EditMixin(ChangeMixin, ReadOnlyAdminMixin):
    """The forms that change a schedule."""

    change_forms = FORMS
    subjects = OF_SCHEDULES
    words = Words(
        gettext_lazy("There is no schedule “%(name)s”."),
        gettext_lazy("Schedule %(name)s: nothing was changed, because it already has these values."),
        gettext_lazy("Schedule %(name)s: %(did)s."),
        gettext_lazy(
            "While the form was open, %(actor)s also changed schedule %(name)s: %(did)s. The last change applies."
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_configure_permission(request)

    def verbs(self, row: Schedule) -> list[str]:
        """Return run now, enable or disable, edit, revert, and delete if no code declares the schedule."""
        off = as_object(row.definition).get("enabled") is False
        verbs = ["run_now", *([] if row.gone_at else ["enable" if off else "disable"]), "edit"]
        undeclared = row.declared_in is None or row.gone_at is not None
        return verbs + ["revert"] * bool(changed_keys(row)) + ["delete"] * undeclared

    def configure_view(self, request: HttpRequest, object_id: str | None, verb: str) -> HttpResponse:
        """Show a form or make its change, after importing the project's tasks, which a web process does only when needed."""
        if self.has_configure_permission(request):
            for problem in registry.autodiscover():
                text = _("The tasks of %(module)s are missing because it cannot be imported: %(error)s")
                values = {"module": problem.module, "error": problem.error}
                self.message_user(request, text % values, messages.WARNING)
        return super().configure_view(request, object_id, verb)

    def tell(self, request: HttpRequest, form: ChangeForm, seen: uuid.UUID | None) -> None:
        """Link to the task that was sent, or say what changed."""
        if not isinstance(form, RunNowForm):
            super().tell(request, form, seen)
            return
        task = self.link(request, Task, form.task_id, str(form.task_id))
        text = format_html(_("Schedule {}: its task was sent, {}."), form.row, task)
        self.message_user(request, text, messages.SUCCESS)
