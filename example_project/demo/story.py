"""The story of the demo.

Files are uploaded, a process and a worker are killed, a person decides, and in the end nothing is
lost.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import uuid
from dataclasses import dataclass, replace
from typing import Any

import psutil
from django.db.models import Count, Exists, Max, Min, OuterRef, Q, QuerySet
from django.urls import reverse

from example_project.demo.browser import Browser, Part
from example_project.demo.clock import now
from example_project.demo.facts import Crash, Facts, Failure, Fall, Largest, disjoint
from example_project.demo.files import File, batches
from example_project.demo.models import Hold
from example_project.demo.narrator import Narrator
from example_project.demo.phrases import search
from example_project.demo.problems import DemoFailed
from example_project.demo.processes import Services, began_at
from example_project.demo.reviews import Reviews
from example_project.demo.tasks import come_back, hold
from example_project.library.models import Document, Upload
from example_project.library.progress import nodes_of
from example_project.library.searching import near_duplicates
from example_project.library.tasks import reindex, verify_document
from example_project.library.workflows import IMPORT
from horsies_django import TaskHandle, TaskResult, Workflow, WorkflowHandle, explain, get_workflow
from horsies_django.conf import config
from horsies_django.core.errors import RetrievalCode
from horsies_django.core.explanations import ReasonCode
from horsies_django.core.status import TERMINAL, Status
from horsies_django.models import Heartbeat, ScheduleTick, Task, Worker, WorkflowNode, WorkflowRun
from horsies_django.monitoring import overview

WORK_SECONDS = 120
CRASH_SECONDS = 30
FALL_SECONDS = 60
HELD = 12
LOOK_MS = 250
PAIRS = 3
PAIRS_LOOKED_AT = 500
TELL_EVERY_SECONDS = 2.0
FINAL = [status.value for status in TERMINAL]


@dataclass
class Story:
    """One run of the demo, from the first file to the last result."""

    say: Narrator
    services: Services
    browser: Browser
    worker: Worker
    files: list[File]
    reviewer: Any  # the user who decides about the imports that wait for a person
    since: dt.datetime  # by the database's clock: only later tasks and uploads are of this run

    def tell(self) -> Facts:
        """Run all steps in order and return the facts that they found.

        Raises DemoFailed if a step fails.
        """
        facts = Facts(sent=len(self.files))
        facts.crash = self.with_replacement(self.upload_with_a_crash())

        reviews = Reviews(self.say, self.services, self.browser, self.reviewer)
        reviews.upload()
        facts.fall = self.kill_the_worker()

        self.finish("imported", self.imports())
        facts.approved, facts.rejected = reviews.decide()
        self.verify()

        self.count(facts)
        facts.pairs = disjoint(near_duplicates(PAIRS_LOOKED_AT))[:PAIRS]
        facts.search = search(self.browser, self.documents())
        facts.reindexed = self.reindexed()

        return facts

    def upload_with_a_crash(self) -> Crash:
        """Upload all files, and kill a process at work after half of them."""
        sent = 0
        crash = None
        first = None

        for batch in batches(self.files):
            self.upload(batch)
            sent += len(batch)

            if first is None:
                first = self.first_result(sent)
            if crash is None and sent >= len(self.files) // 2:
                self.say.step(f"{sent} of {len(self.files)} files uploaded")
                crash = self.kill_a_child()

        if crash is None:
            raise DemoFailed("there was no file to upload")

        self.say.step(f"{sent} of {len(self.files)} files uploaded")
        return crash

    def upload(self, batch: list[File]) -> None:
        """Upload files by the form of the site."""
        parts = [Part("files", file.name, file.content) for file in batch]
        fields = {"submission": str(uuid.uuid4()), "folder": batch[0].folder}
        self.browser.post(reverse("library:upload"), fields, parts)

    def first_result(self, sent: int) -> uuid.UUID:
        """Wait for the import of the first upload, and print its nodes."""
        upload = (
            Upload.objects.filter(uploaded_at__gte=self.since).only("import_run").earliest("pk")
        )
        run = get_workflow(upload.import_run)
        result = self.result_of(run)

        self.say.step(f"first result, {len(self.files) - sent} files still to be uploaded:")
        if result.is_ok():
            made = run.results()["read_file"].ok_value
            self.say.detail(
                f"{made.path}: {made.kind.value}, {made.size:,} bytes, document {made.document_id}"
            )
        else:
            self.say.detail(f"{result.err_value.error_code}: {result.err_value.message}")

        told = [
            f"{node.name} x {node.total}" if node.kind == "map" else node.name
            for node in nodes_of(run)
        ]
        self.say.detail(
            f"{', '.join(told)}: {run.progress().completed} of {run.progress().total} tasks "
            "completed"
        )

        return upload.import_run

    def kill_a_child(self) -> Crash:
        """Send ``hold``, kill the child that runs it, and return how the task ended."""
        token = uuid.uuid4()
        handle = hold.send(token)
        held = self.services.until(
            lambda: Hold.objects.filter(token=token).first(),
            "a child runs the task that waits to be killed",
            CRASH_SECONDS,
        )

        if held.pid not in {
            child.pid for child in psutil.Process(self.worker.pid).children(recursive=True)
        }:
            raise DemoFailed(
                f"process {held.pid} runs the task 'hold', but is no child of worker "
                f"{self.worker.pid}"
            )

        os.kill(held.pid, signal.SIGKILL)
        self.say.step(f"killed process {held.pid} (kill -9) while it ran the task 'hold':")

        error = self.result_of(handle).err
        crash = Crash(
            held.pid,
            error.error_code if error else None,
            error.message if error else "it has a result",
        )

        self.say.detail(f"{crash.code}: {crash.message}")
        return crash

    def result_of(self, handle: TaskHandle[Any] | WorkflowHandle) -> TaskResult[Any]:
        """Wait for a result and return it.

        Raises DemoFailed if there is none in time, or if the site or the worker ends meanwhile.
        """

        def looked() -> list[TaskResult[Any]]:
            result = handle.get(timeout_ms=LOOK_MS)
            waits = (
                result.is_err() and result.err_value.error_code == RetrievalCode.WAIT_TIMEOUT.value
            )
            return [] if waits else [result]

        return self.services.until(looked, f"the result of {handle!r}", CRASH_SECONDS)[0]

    def with_replacement(self, crash: Crash) -> Crash:
        """Wait until the worker has all its processes again, and add the new one to the crash."""

        def newest() -> int | None:
            beating = Heartbeat.objects.filter(
                worker_id=self.worker.pk, role="runner", died_at=None
            ).order_by("sent_at", "pk")
            pids = list(beating.values_list("pid", flat=True))

            # a process that was recycled since the last heartbeat is in the table, but has ended
            began = {pid: at for pid in pids if (at := began_at(pid)) is not None}

            if crash.pid in pids or len(began) < self.services.processes:
                return None
            return max(began, key=lambda pid: began[pid])

        replacement = self.services.until(
            newest, f"another process takes the place of {crash.pid}", CRASH_SECONDS
        )
        self.say.step(f"process {replacement} has taken the place of {crash.pid}")
        return replace(crash, replacement=replacement)

    def kill_the_worker(self) -> Fall:
        """Kill the worker with all its processes while they work, and start another one.

        Returns how many of the tasks came back. Some of the tasks are known: those of a workflow
        with a map as its only node.
        """
        tokens = [uuid.uuid4() for _ in range(HELD)]
        flow = Workflow("come back")
        flow.returns(flow.map(come_back, token=tokens))
        run = flow.send()

        holds = Hold.objects.filter(token__in=tokens)
        self.services.until(
            lambda: holds.count() == HELD,
            "the tasks run that wait for the worker's death",
            CRASH_SECONDS,
        )

        pid = self.worker.pid
        at = now()
        self.services.kill_worker()

        held = dict(
            Task.objects.filter(claimed_by=self.worker.pk, finished_at=None).values_list(
                "pk", "claim_generation"
            )
        )
        open_runs = self.imports().exclude(status__in=FINAL).count()

        self.say.step(
            f"killed worker {pid} with all its processes (kill -9) while they ran {len(held)} "
            "tasks; "
            f"{open_runs} imports are under way"
        )

        self.worker = self.services.worker_row()
        silence = config().recovery.running_stale_threshold_ms / 1_000
        self.say.step(
            f"worker {self.worker.pid} starts; it counts the other one as dead after {silence:.0f} "
            "s of silence"
        )

        def back() -> list[Task]:
            found = Task.objects.filter(pk__in=held).only("claim_generation", "started_at")
            again = [
                task for task in found if task.claim_generation > held[task.pk] and task.started_at
            ]
            return again if len(again) == len(held) else []

        again = self.services.until(back, "the tasks of the killed worker run again", FALL_SECONDS)
        seconds = (max(task.started_at for task in again) - at).total_seconds()
        self.say.step(f"{len(again)} tasks came back in {seconds:.1f} s")

        attempts = self.result_of(run).ok or []
        self.say.step(
            f"workflow {flow.name!r}: {run.status()}, the attempts that completed are "
            f"{sorted(set(attempts))}"
        )

        done = sum(attempt > 1 for attempt in attempts)
        return Fall(len(held), len(again) - (HELD - done), seconds)

    def finish(self, verb: str, rows: QuerySet[Any]) -> None:
        """Wait until all of these tasks or runs are final, and print how far they are meanwhile."""
        told_at = self.say.seconds

        def is_done() -> bool:
            nonlocal told_at
            counts = rows.aggregate(all=Count("pk"), final=Count("pk", filter=Q(status__in=FINAL)))
            done = counts["final"] == counts["all"]

            if done or self.say.seconds - told_at >= TELL_EVERY_SECONDS:
                told_at = self.say.seconds
                self.say.step(f"{counts['final']} of {counts['all']} {verb}")

            return done

        self.services.until(is_done, f"everything is {verb}", WORK_SECONDS)

    def verify(self) -> None:
        """Press the button that sends an async task for each document, which fetches it back."""
        self.browser.post(reverse("library:verify"), {})
        self.say.step(
            self.services.until(self.capped, "two documents are fetched at a time", WORK_SECONDS)
        )
        self.finish(
            "fetched back and compared", self.tasks().filter(task_name=verify_document.name)
        )

    def capped(self) -> str | None:
        """Return a line about the capped queue, or None while it still has free slots.

        The line contains the reason why the last task of the queue waits, if one waits.
        """
        waiting = self.tasks().filter(task_name=verify_document.name, status=Status.PENDING.value)
        last = waiting.order_by("-pk").first()
        if last is None:
            return "verify: nothing had to wait"

        (queue,) = overview.queues(["verify"])
        cap = queue.effective["max_concurrency"]
        because = [
            reason.text
            for reason in explain(last.pk).reasons
            if reason.code == ReasonCode.QUEUE_AT_CAP
        ]

        if queue.running < cap or not because:
            return None

        why = because[0][0].lower() + because[0][1:]
        return f"verify: {queue.running} of {cap} slots, {queue.pending} waiting, because {why}"

    def reindexed(self) -> int:
        """Wait until the schedule has sent a task that indexed documents; return their number."""
        sent = ScheduleTick.objects.filter(schedule_name=reindex.name, sent_at__gte=self.since)

        def results() -> list[TaskResult[int]]:
            done = Task.objects.filter(pk__in=sent.values("task_id"), status=Status.COMPLETED.value)
            found = [
                reindex.handle(pk).get(timeout_ms=0) for pk in done.values_list("pk", flat=True)
            ]
            return [result for result in found if result.ok_value]

        count: int = self.services.until(
            results, "documents are indexed anew by schedule", WORK_SECONDS
        )[-1].ok_value
        self.say.step(f"indexed anew by schedule: {count} documents")
        return count

    def tasks(self) -> QuerySet[Task]:
        """Return the tasks of this run."""
        return Task.objects.filter(sent_at__gte=self.since)

    def imports(self) -> QuerySet[WorkflowRun]:
        """Return the imports of this run of the demo that wait for no review."""
        reviewed = Upload.objects.filter(review=True, import_run=OuterRef("pk"))
        return WorkflowRun.objects.filter(~Exists(reviewed), name=IMPORT, sent_at__gte=self.since)

    def documents(self) -> QuerySet[Document]:
        """Return the documents of the files of this run."""
        uploads = Upload.objects.filter(uploaded_at__gte=self.since).exclude(document=None)
        return Document.objects.filter(pk__in=uploads.values("document"))

    def count(self, facts: Facts) -> None:
        """Add the counts and the failures in the tables to the facts."""
        facts.completed = self.imports().filter(status="COMPLETED").count()

        failed = dict(self.imports().filter(status="FAILED").values_list("pk", "error_code"))
        for upload in Upload.objects.filter(import_run__in=failed).defer("content"):
            run = get_workflow(upload.import_run)
            node = run.get(timeout_ms=0).err_value.data["node"]
            facts.failures.append(
                Failure(
                    upload.path, failed[upload.import_run], run.results()[node].err_value.message
                )
            )

        facts.largest = self.largest()
        counts = self.documents().aggregate(
            all=Count("pk"), indexed=Count("indexed_at"), verified=Count("verified_at")
        )
        facts.documents = counts["all"]
        facts.indexed = counts["indexed"]
        facts.verified = counts["verified"]

        times = (
            self.tasks()
            .filter(status__in=FINAL)
            .aggregate(n=Count("pk"), first=Min("sent_at"), last=Max("finished_at"))
        )
        facts.tasks = times["n"]
        facts.busy_seconds = (times["last"] - times["first"]).total_seconds() if times["n"] else 0.0

    def largest(self) -> Largest | None:
        """Return the import with the most chapters, or None if no import has any."""
        maps = WorkflowNode.objects.filter(
            workflow_id__in=self.imports().values("pk"), kind="map", total__gt=0
        )
        found = maps.order_by("-total", "workflow_id").first()
        if found is None:
            return None

        counts = get_workflow(found.workflow_id).progress()
        path = Upload.objects.defer("content").get(import_run=found.workflow_id).path
        return Largest(path, found.total, counts.completed, counts.total)
