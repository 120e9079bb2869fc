"""Workflow runs, their nodes and the edges between the nodes.

Nodes have numbers within their run, and edges and tasks refer to them by run and number. A node
waits for the upstream nodes that are counted in ``open``. The counters change under the lock of the
run, when upstream nodes become final.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from horsies_django.models.fields import Moment, StoredJSON
from horsies_django.models.tasks import ReadOnlyRow


class WorkflowRun(ReadOnlyRow):
    """A workflow that was sent.

    ``owed_at`` is set while the run has to be advanced and no other event would lead to that: ready
    nodes wait to be promoted, or nodes and tasks wait to be ended, withdrawn or run again.
    ``retrying`` is set while a retry is under way, see ``horsies_retry_part``. ``resuming`` is set
    until the tasks that a pause held back may start. ``advanced_at`` is set when the parent of a
    finished run has counted it.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    name = models.CharField(_("name"), max_length=255)
    key = models.CharField(_("key"), max_length=255, null=True)  # noqa: DJ001 - NULL: no key
    graph_hash = models.CharField(_("hash of the graph"), max_length=64, null=True)  # noqa: DJ001 - NULL: no key
    status = models.CharField(_("status"), max_length=12, default="RUNNING", db_default="RUNNING")
    on_error = models.CharField(_("on error"), max_length=5)
    output = models.BigIntegerField(_("output node"), null=True)
    max_in_flight = models.IntegerField(_("maximum tasks in flight"), null=True)
    good_until = models.DateTimeField(_("good until"), null=True)
    parent_id = models.UUIDField(_("parent run"), null=True)
    parent_node = models.BigIntegerField(_("node of the parent run"), null=True)
    continues = models.UUIDField(_("continues run"), null=True)
    continued_as = models.UUIDField(_("continued as run"), null=True)
    sent_at = models.DateTimeField(_("sent"), db_default=Now())
    owed_at = models.DateTimeField(_("to be advanced"), null=True)
    retrying = models.BigIntegerField(_("retried up to node"), null=True)
    resuming = models.BooleanField(_("has tasks to resume"), default=False, db_default=False)
    finished_at = models.DateTimeField(_("finished"), null=True)
    advanced_at = models.DateTimeField(_("counted by parent"), null=True)
    error_node = models.BigIntegerField(_("first failed node"), null=True)
    error_code = models.CharField(_("error code"), max_length=100, null=True)  # noqa: DJ001 - NULL: no error
    result = StoredJSON(_("result"), null=True)

    class Meta:
        db_table = "horsies_workflows"
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        default_permissions = ("view",)
        permissions = (("operate_workflow", _("Can pause, resume, cancel and retry workflows")),)
        constraints = (
            models.UniqueConstraint(
                fields=["key", "name"], condition=Q(key__isnull=False), name="horsies_workflows_key"
            ),
        )
        indexes = (
            models.Index(fields=["sent_at"], name="horsies_workflows_sent"),
            models.Index(fields=["name", "sent_at"], name="horsies_workflows_name"),
            models.Index(
                fields=["sent_at"],
                condition=Q(finished_at__isnull=True),
                name="horsies_workflows_unfinished",
            ),
            models.Index(
                fields=["sent_at"],
                condition=Q(status="PAUSED") | Q(error_code="COMPENSATION_FAILED"),
                name="horsies_workflows_halted",
            ),
            models.Index(
                fields=["owed_at"],
                condition=Q(owed_at__isnull=False),
                name="horsies_workflows_owed",
            ),
            models.Index(
                fields=["finished_at"],
                condition=Q(finished_at__isnull=False, parent_id__isnull=True),
                name="horsies_workflows_finished",
            ),
            models.Index(
                fields=["finished_at"],
                condition=Q(
                    finished_at__isnull=False, parent_id__isnull=False, advanced_at__isnull=True
                ),
                name="horsies_workflows_untold",
            ),
            models.Index(
                fields=["parent_id", "parent_node"],
                condition=Q(parent_id__isnull=False),
                name="horsies_workflows_parent",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.pk}"


class WorkflowNode(ReadOnlyRow):
    """A node of a run. ``core/kinds.py`` has the kinds.

    A node is a task, a map (one task per element), a workflow of its own, an input of the run, a
    wait, the undo of another node, or the successor as which the run continues.

    ``open`` counts the upstream nodes that have not finished. A quorum does not count all nodes
    that it waits for: of its ``branches``, ``ok`` counts those that completed, and ``bad`` those
    that ended otherwise. ``inputs`` maps parameters to the results that become their arguments.

    A map or an undo counts its tasks in ``total``, ``expanded``, ``in_flight``, ``items_ok`` and
    ``items_bad``. A wait for several things counts them in ``total`` and ``items_ok``. ``signal``
    is the name of the signals that a wait takes, or the name of a gate. Only waits have
    ``on_timeout``. ``due_at`` is the end of a wait, or of the delay of a task. ``opening`` counts
    how often a wait began. ``undo`` is the task that undoes this node, and ``undoes`` is the node
    that this one undoes.
    """

    pk = models.CompositePrimaryKey("workflow_id", "number")
    workflow_id = models.UUIDField(_("run"))
    number = models.BigIntegerField(_("number"))
    added_by = models.BigIntegerField(_("added by node"), default=-1, db_default=-1)
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=8)
    status = models.CharField(_("status"), max_length=10)
    task_name = models.CharField(_("task"), max_length=255)
    queue_name = models.CharField(_("queue"), max_length=100)
    lane = models.CharField(_("lane"), max_length=5)
    priority = models.SmallIntegerField(_("priority"))
    max_retries = models.SmallIntegerField(_("retries allowed"), default=0, db_default=0)
    options = StoredJSON(_("options"), null=True)
    kwargs = StoredJSON(_("arguments"), null=True)
    codec = models.CharField(_("form of the arguments"), max_length=10, null=True)  # noqa: DJ001 - NULL: by name
    inputs = StoredJSON(_("arguments from results"), null=True)
    over = models.TextField(_("mapped argument"), null=True)  # noqa: DJ001 - NULL: not a map
    graph = StoredJSON(_("graph"), null=True)
    value = StoredJSON(_("value"), null=True)
    rule = models.CharField(_("join"), max_length=10, default="all", db_default="all")
    needs = models.IntegerField(_("quorum"), null=True)
    allow_failed = models.BooleanField(_("runs after failures"), default=False, db_default=False)
    is_wait = models.BooleanField(_("waits"), default=False, db_default=False)
    when_node = models.BigIntegerField(_("condition on node"), null=True)
    when_path = models.TextField(_("condition"), null=True)  # noqa: DJ001 - NULL: no condition
    delay = models.DurationField(_("delay"), null=True)
    good_until = Moment(_("good until"), null=True)
    branches = models.IntegerField(_("upstream nodes that count"), default=0, db_default=0)
    open = models.IntegerField(_("upstream nodes open"), default=0, db_default=0)
    ok = models.IntegerField(_("upstream nodes completed"), default=0, db_default=0)
    bad = models.IntegerField(_("upstream nodes not completed"), default=0, db_default=0)
    total = models.IntegerField(_("elements"), null=True)
    expanded = models.IntegerField(_("elements sent"), default=0, db_default=0)
    in_flight = models.IntegerField(_("elements in flight"), default=0, db_default=0)
    items_ok = models.IntegerField(_("elements completed"), default=0, db_default=0)
    items_bad = models.IntegerField(_("elements not completed"), default=0, db_default=0)
    signal = models.CharField(_("signal"), max_length=200, null=True)  # noqa: DJ001 - NULL: waits for none
    signal_key = models.CharField(_("key of the signal"), max_length=255, null=True)  # noqa: DJ001 - NULL: no key
    signal_type = models.TextField(_("type of the data"), null=True)  # noqa: DJ001 - NULL: any
    due_at = Moment(_("waits until"), null=True)
    on_timeout = models.CharField(_("after the timeout"), max_length=8, null=True)  # noqa: DJ001 - NULL: not a wait
    permission = models.CharField(_("permission"), max_length=255, null=True)  # noqa: DJ001 - NULL: not a gate
    opening = models.IntegerField(_("number of waits"), default=0, db_default=0)
    decided_by = models.TextField(_("decided by"), null=True)  # noqa: DJ001 - NULL: nobody decided
    undo = StoredJSON(_("undo"), null=True)
    undoes = models.BigIntegerField(_("undoes node"), null=True)
    task_id = models.UUIDField(_("task or run"), null=True)
    finished_at = Moment(_("finished"), null=True)
    error_code = models.CharField(_("error code"), max_length=100, null=True)  # noqa: DJ001 - NULL: no error
    error = models.TextField(_("error"), null=True)  # noqa: DJ001 - NULL: no error

    class Meta(ReadOnlyRow.Meta):
        db_table = "horsies_workflow_nodes"
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        constraints = (
            models.UniqueConstraint(  # all nodes have a name; see the index of edges
                fields=["name", "workflow_id", "added_by"],
                condition=Q(name__isnull=False),
                name="horsies_workflow_nodes_named",
            ),
        )
        indexes = (
            models.Index(
                fields=["workflow_id", "status", "number"],
                condition=Q(finished_at__isnull=True),
                name="horsies_workflow_nodes_open",
            ),
            models.Index(
                fields=["workflow_id", "finished_at"],
                condition=Q(status="ADDED"),
                name="horsies_workflow_nodes_added",
            ),
            models.Index(
                fields=["workflow_id", "added_by"],
                condition=Q(added_by__gte=0),
                name="horsies_workflow_nodes_grown",
            ),
            models.Index(
                fields=["workflow_id", "status", "due_at"],
                condition=Q(finished_at__isnull=True, is_wait=True),
                name="horsies_workflow_nodes_waits",
            ),
            models.Index(
                fields=["due_at"],
                condition=Q(status="WAITING", finished_at__isnull=True),
                name="horsies_workflow_nodes_due",
            ),
            models.Index(
                fields=["workflow_id", "signal", "status", "signal_key", "number"],
                condition=Q(signal__isnull=False),
                name="horsies_workflow_nodes_signal",
            ),
        )

    def __str__(self) -> str:
        return self.name


class WorkflowSignal(ReadOnlyRow):
    """A signal to a run.

    ``seen_at`` is set when the run is advanced after the signal, ``used_at`` when ``node`` takes
    it.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    workflow_id = models.UUIDField(_("run"))
    name = models.CharField(_("name"), max_length=200)
    key = models.CharField(_("key"), max_length=255, null=True)  # noqa: DJ001 - NULL: no key
    data = StoredJSON(_("data"))
    actor = models.TextField(_("by"))
    sent_at = models.DateTimeField(_("sent"), db_default=Now())
    seen_at = models.DateTimeField(_("seen"), null=True)
    node = models.BigIntegerField(_("taken by node"), null=True)
    used_at = models.DateTimeField(_("taken"), null=True)

    class Meta(ReadOnlyRow.Meta):
        db_table = "horsies_workflow_signals"
        verbose_name = _("signal")
        verbose_name_plural = _("signals")
        indexes = (
            models.Index(fields=["workflow_id", "sent_at", "id"], name="horsies_signals_run"),
            models.Index(
                fields=["workflow_id", "sent_at", "id"],
                condition=Q(seen_at__isnull=True),
                name="horsies_signals_unseen",
            ),
            models.Index(
                fields=["workflow_id", "name", "sent_at", "id"],
                condition=Q(used_at__isnull=True),
                name="horsies_signals_unused",
            ),
            models.Index(
                fields=["workflow_id", "name", "key", "sent_at", "id"],
                condition=Q(used_at__isnull=True, key__isnull=False),
                name="horsies_signals_keyed",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.pk}"


class WorkflowEdge(ReadOnlyRow):
    """An edge: the node ``downstream`` waits for the node ``upstream`` of the same run.

    The join of ``downstream`` counts the upstream node if ``counts`` is true.
    """

    pk = models.CompositePrimaryKey("workflow_id", "upstream", "downstream")
    workflow_id = models.UUIDField(_("run"))
    upstream = models.BigIntegerField(_("upstream node"))
    downstream = models.BigIntegerField(_("downstream node"))
    counts = models.BooleanField(_("counts"), default=True, db_default=True)

    class Meta(ReadOnlyRow.Meta):
        db_table = "horsies_workflow_edges"
        verbose_name = _("edge")
        verbose_name_plural = _("edges")
        indexes = (
            # All edges are in it, but the condition allows it only for queries with a "downstream",
            # whatever the statistics are.
            models.Index(
                fields=["downstream", "workflow_id"],
                condition=Q(downstream__isnull=False),
                name="horsies_workflow_edges_up",
            ),
        )

    def __str__(self) -> str:
        return f"{self.upstream} -> {self.downstream}"
