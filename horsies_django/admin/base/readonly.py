"""Read-only pages that stay fast with any number of rows, and that explain database errors.

Django's change list counts all rows twice, loads every column, and allows filtering by any field in
the URL. A page of this module reads one row more than it shows, to find out whether there is a next
page. Its queries have a timeout, and only the declared filters are applied.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import django
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.models import Model, Q, QuerySet, UUIDField
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from horsies_django.admin.base.html import parse_id, payload_note, row_field
from horsies_django.conf import config
from horsies_django.monitoring.reading import DEEPEST_ROW, STATEMENT_TIMEOUT_MS
from horsies_django.store.base import QUERY_CANCELED, UNDEFINED, error_text, run_statement

logger = logging.getLogger("horsies.admin")

LOCK_PATIENCE = "3s"

# The meaning of an SQLSTATE on these pages, and what to do about it.
SQLSTATE_REMEDIES: dict[str, str | Promise] = {
    "25006": gettext_lazy(
        "The database is read-only. Use the site that is connected to the primary."
    ),
    "42501": gettext_lazy(
        "The site's database role lacks a privilege. The page “Give the database roles no more "
        "than they need” of the"
        " documentation lists the privileges that each page and action requires."
    ),
    **dict.fromkeys(UNDEFINED, gettext_lazy("Check that “migrate” has been run.")),
    "55P03": gettext_lazy(
        "Another open transaction has locked one of these rows. Try again when it has ended."
    ),
    "57014": gettext_lazy(
        "This took longer than the statement timeout of the database role. Another transaction may "
        "have locked one of these"
        " rows. Try again."
    ),
}

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    Base = ModelAdmin
    Listing = ChangeList
else:
    Base = Listing = object
    ModelAdmin = admin.ModelAdmin

T = TypeVar("T")


def database_refusal(error: DatabaseError) -> str:
    reason = error_text(error).partition("\n")[0] or type(error).__name__
    remedy = SQLSTATE_REMEDIES.get(getattr(error.__cause__, "sqlstate", None) or "", "")
    return _("The database refused: %(error)s. %(remedy)s") % {"error": reason, "remedy": remedy}


@contextmanager
def patiently() -> Iterator[None]:
    """Run a block in a transaction that gives up if others lock its rows for ``LOCK_PATIENCE``."""
    alias = config().database
    with transaction.atomic(using=alias):
        before = _wait_for_locks(alias, LOCK_PATIENCE)
        yield
        _wait_for_locks(alias, before)  # an outer transaction may continue


def _wait_for_locks(alias: str, timeout: str) -> str:
    """Set the lock timeout of this transaction, and return the previous one."""
    ((before, _now),) = run_statement(
        connections[alias], "sessions/lock_timeout", {"timeout": timeout}
    )
    return str(before)


def read_bounded(alias: str, read: Callable[[], T], timeout_ms: int | None = None) -> T | None:
    """Return the result of ``read``, or None if one of its statements takes too long.

    A statement takes too long after ``timeout_ms`` milliseconds, or after ``STATEMENT_TIMEOUT_MS``
    by default.

    Indexes are preferred, whatever the statistics of the tables are. The settings are made in a
    savepoint that is rolled back. So ``read`` must not write, and an outer transaction
    (``ATOMIC_REQUESTS``) keeps its own settings and continues after a timeout.
    """
    try:
        with transaction.atomic(using=alias):
            run_statement(
                connections[alias],
                "monitoring/page_bounds",
                {"timeout_ms": str(timeout_ms or STATEMENT_TIMEOUT_MS)},
            )

            found = read()
            transaction.set_rollback(True, using=alias)
            return found
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) != QUERY_CANCELED:
            raise
        return None


def read_all(alias: str, reads: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return a list of the results of ``reads``, with None for each that takes too long.

    All of them share the statements that set the timeout. Only if one of them takes too long is
    each one read by itself.
    """
    found = read_bounded(alias, lambda: [read() for read in reads])
    return [read_bounded(alias, read) for read in reads] if found is None else found


class NextPageMixin(Listing):
    """Mixin for a change list with links to the previous and next page, which never counts rows."""

    timed_out = False
    note: str | Promise = ""
    first_number = 0

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the page.

        Raises IncorrectLookupParameters for an invalid page number.
        """
        start = (self.page_num - 1) * self.list_per_page
        if not 0 <= start < DEEPEST_ROW:
            raise IncorrectLookupParameters(f"page {self.page_num}")

        # One row more than is shown, to find out whether there is an older page.
        stop = start + self.list_per_page + 1
        found = read_bounded(self.root_queryset.db, lambda: list(self.source()[start:stop]))
        self.timed_out = found is None
        rows = found or []

        self.has_older = len(rows) > self.list_per_page and start + self.list_per_page < DEEPEST_ROW
        self.first_number = start + 1
        self.result_list = self.prepare(request, rows[: self.list_per_page])

        # Templates and Django read these attributes. The search box shows no counts if they are
        # equal.
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = self.can_show_all = self.multi_page = False
        self.show_admin_actions = bool(self.result_list)
        self.paginator = Paginator(self.result_list, self.list_per_page)

    def chosen(self, kind: type[admin.SimpleListFilter]) -> str | None:
        """Return the value of a filter, or None if it is not set."""
        return next((item.value() for item in self.filter_specs if isinstance(item, kind)), None)

    def source(self) -> QuerySet[Any]:
        """Return the rows in their order.

        This is called inside ``read_bounded`` and may query the database.
        """
        rows: QuerySet[Any] = self.queryset
        return rows

    def prepare(self, request: HttpRequest, rows: list[Any]) -> Any:
        """Add the values that the cells of the page need, with queries per page and not per row."""
        return rows

    @property
    def last_number(self) -> int:
        """The number of the last row of this page, counted from the newest row."""
        return self.first_number + len(self.result_list) - 1

    @property
    def newer_url(self) -> str | None:
        """The query string of the page before this one."""
        return self.get_query_string({PAGE_VAR: self.page_num - 1}) if self.page_num > 1 else None

    @property
    def older_url(self) -> str | None:
        """The query string of the page after this one."""
        return self.get_query_string({PAGE_VAR: self.page_num + 1}) if self.has_older else None


class ChosenFilter(admin.SimpleListFilter):
    """A filter whose value must be one of the offered choices."""

    offered: Sequence[tuple[str, Any]] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        return self.offered

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter the rows. Raises IncorrectLookupParameters for a value that is not offered."""
        value = self.value()
        if value is None:
            return queryset

        if value not in dict(self.lookup_choices):
            raise IncorrectLookupParameters(repr(value))
        return queryset.filter(self.condition(value))

    def condition(self, value: str) -> Q:
        return Q((self.parameter_name or "", value))


class ReadOnlyAdminMixin(Base):
    """Base of all pages: it makes rows read-only, and filters only by the declared filters."""

    actions: Any = None
    searched: Any = None  # a function of the rows and a search term that returns the matching rows
    # Columns that are read only on the page of a row, and only for users who may see payload.
    payload_columns: tuple[str, ...] = ()
    change_list_mixin: ClassVar[type[NextPageMixin]] = NextPageMixin
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    view_on_site = False

    class Media:
        css: ClassVar = {"all": ("horsies/admin.css",)}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list, or the reason why the database refused to read it."""
        view = super().changelist_view
        return self.respond(request, lambda: view(request, extra_context))

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the page of a row, or the reason why the database refused to read it."""
        view = super().changeform_view
        return self.respond(request, lambda: view(request, *args, **kwargs))

    def render_change_form(
        self,
        request: Any,
        context: Any,
        add: Any = False,
        change: Any = False,
        form_url: Any = "",
        obj: Any = None,
    ) -> Any:
        """Add the sections of the page to the context of its fields."""
        if obj:
            context |= self.sections(request, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def view_of(self, view: Callable[..., HttpResponse], *, atomic: bool = True) -> Any:
        """Return a view for users of this site that explains database errors.

        If ``atomic`` is false, the view does not run in the transaction of the request.
        """

        def shown(request: HttpRequest, **of: Any) -> HttpResponse:
            return self.respond(request, lambda: view(request, **of))

        wrapped: Any = self.admin_site.admin_view(shown)
        for alias in () if atomic else connections:
            wrapped = transaction.non_atomic_requests(using=alias)(wrapped)
        return wrapped

    def respond(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        """Return the response of a view, or a page that explains why the database refused."""
        try:
            return view()
        except DatabaseError as error:
            logger.warning(
                "the page %.200r could not be shown: %s", request.path, error_text(error)
            )
            return self.shown(
                request,
                "refused",
                _("This page cannot be shown"),
                {"text": database_refusal(error)},
                503,
            )

    def shown(
        self,
        request: Any,
        template: str,
        title: str | Promise,
        context: dict[str, Any],
        status: int | None = None,
    ) -> HttpResponse:
        """Return a page that is neither a list nor the page of a row."""
        request.current_app = self.admin_site.name
        about = {
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "crumbs": self.crumbs(("", title)),
            "crumbs_are_a_list": django.VERSION >= (6, 1),
        }
        context = {**self.admin_site.each_context(request), **about, **context}
        return TemplateResponse(request, f"admin/horsies/{template}.html", context, status=status)

    def crumbs(self, *below: tuple[str, str | Promise]) -> list[tuple[str, str | Promise]]:
        """Return the breadcrumbs of a page below the list, as pairs of an address and a text.

        The last one is the page itself, whose address is empty.
        """
        site = self.admin_site.name
        app = self.opts.app_config
        listed = reverse(
            f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist", current_app=site
        )
        return [
            (reverse("admin:index", current_app=site), _("Home")),
            (reverse("admin:app_list", args=(app.label,), current_app=site), app.verbose_name),
            (listed, capfirst(str(self.opts.verbose_name_plural))),
            *below,
        ]

    def home(self, request: HttpRequest, text: str) -> HttpResponse:
        """Redirect to the index of the admin, with ``text`` as a warning."""
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(reverse("admin:index", current_app=self.admin_site.name))

    def find(self, request: HttpRequest, object_id: str, *, whole: bool = False) -> Any:
        """Return the row with the id in an address, or None if there is no such row.

        If ``whole`` is true and the user may see payload, all columns of the row are loaded.
        """
        if (key := self.key_of(object_id)) is None:
            return None
        rows = self.get_queryset(request)
        rows = rows.defer(None) if whole and self.has_view_payload_permission(request) else rows
        return rows.filter(pk=key).first()

    def key_of(self, text: str) -> uuid.UUID | str | None:
        """Return the primary key in a text, or None if the text cannot be a primary key.

        Names and queries cannot contain NUL bytes.
        """
        if isinstance(self.opts.pk, UUIDField):
            return parse_id(text)
        return None if "\x00" in text else text

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """Return the row of a page with the attributes that the page also shows."""
        row = self.find(request, object_id, whole=True)
        if row is not None:
            self.complete(request, row)
        return row

    def complete(self, request: HttpRequest, row: Any) -> None:
        """Set the attributes of a row that its page shows and that are not columns."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> Any:
        """Search with ``searched`` of the page if it has one, else as Django does."""
        if self.searched is None:
            return super().get_search_results(request, queryset, search_term)
        term = search_term.strip()
        return (self.searched(queryset, term) if term else queryset), False

    def sections(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """Return the context for the sections below the fields of a row's page."""
        return {}

    shown_id = row_field(
        gettext_lazy("id"), lambda row: format_html('<code class="horsies-id">{}</code>', row.pk)
    )
    hidden_payload = row_field(gettext_lazy("hidden"), lambda _row: payload_note())

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: only the queue's own statements add rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False, because saving a form over a row would undo later changes of a worker."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False, because a user or task may wait for the result of a task."""
        return False

    def has_view_payload_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see arguments, results, error messages and tracebacks."""
        return request.user.has_perm("horsies.view_payload")

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow only the declared filters.

        Others would reveal secrets, such as ``?kwargs__password__startswith=a``.
        """
        return lookup in {getattr(item, "parameter_name", None) for item in self.list_filter}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows from the database of the queue, each with ``read_at``.

        ``read_at`` is the time of the database's clock. The ages on the page are computed from it.
        """
        rows: QuerySet[Any] = (
            super().get_queryset(request).using(config().database).annotate(read_at=Now())
        )
        return rows.defer(*self.payload_columns)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Return the actions of the page, without the actions of the whole site.

        An export action of the site would show payload to users who may not see it.
        """
        # Django has passed the location since version 6.1.
        where = () if action_location is None else (action_location,)
        own = {getattr(one, "__name__", one) for one in self.actions or ()}
        return {
            name: act for name, act in super().get_actions(request, *where).items() if name in own
        }

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Run an action on the ticked rows only.

        No page has a link that ticks all matching rows. Ids that no row can have are ignored.
        """
        post = request.POST.copy()
        post.setlist(
            ACTION_CHECKBOX_NAME,
            [text for text in post.getlist(ACTION_CHECKBOX_NAME) if self.key_of(text)],
        )
        post["select_across"] = "0"
        request.POST = post  # type: ignore[assignment]

        return super().response_action(request, queryset, *args, **kwargs)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the change list class of the ModelAdmin, combined with ``change_list_mixin``."""
        listing = super().get_changelist(request, **kwargs)
        return type(listing.__name__, (self.change_list_mixin, listing), {})

    def link(
        self, request: HttpRequest, model: type[Model], pk: uuid.UUID | str, text: str
    ) -> SafeString | str:
        """Return ``text`` as a link to the page of a row, or as plain text if there is none.

        That is so if the site does not have the page, or if the user may not view it.
        """
        permission = f"{model._meta.app_label}.view_{model._meta.model_name}"
        if (
            pk == ""
            or not self.admin_site.is_registered(model)
            or not request.user.has_perm(permission)
        ):
            return text

        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
        address = reverse(name, args=(quote(pk),), current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', address, text)
