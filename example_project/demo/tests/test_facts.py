"""Tests of the check whether a run of the demo was as promised."""

from __future__ import annotations

from dataclasses import replace

from django.test import SimpleTestCase

from example_project.demo.facts import (
    Approved,
    Crash,
    Facts,
    Failure,
    Fall,
    Largest,
    Rejected,
    Search,
    untrue,
)
from example_project.demo.files import LARGEST_BYTES, SAMPLE, batches, choose, is_utf8
from example_project.demo.phrases import first_phrase

GOOD = Facts(
    sent=3,
    completed=2,
    failures=[Failure("old.txt", "NOT_TEXT", "byte 0xfc")],
    largest=Largest("a.txt", chapters=3, completed=7, tasks=7),
    documents=2,
    indexed=2,
    verified=2,
    reindexed=2,
    crash=Crash(11, "WORKER_CRASHED", "killed by SIGKILL", replacement=12),
    fall=Fall(held=12, back=12, seconds=11.5),
    approved=Approved("letter.txt", "COMPLETED", is_published=True, announced=1, seconds=2.4),
    rejected=Rejected("draft.txt", "FAILED", "GATE_REJECTED", is_removed=True),
    search=Search("one two three", "a.txt", is_found=True),
)


class UntrueTests(SimpleTestCase):
    """Tests of each promise of the demo, broken alone."""

    def test_a_run_as_promised_gives_no_reason(self) -> None:
        assert list(untrue(GOOD)) == []

    def test_each_thing_that_is_not_as_promised_gives_its_reason(self) -> None:
        assert GOOD.crash
        assert GOOD.search
        assert GOOD.largest
        assert GOOD.approved
        assert GOOD.rejected

        broken = {
            "3 files were sent": replace(GOOD, completed=1),
            "0 files were sent": replace(GOOD, sent=0, completed=0, failures=[]),
            "old.txt FAILED without": replace(GOOD, failures=[Failure("old.txt", None, "")]),
            "a.txt has 7 tasks, 6 COMPLETED": replace(
                GOOD, largest=replace(GOOD.largest, completed=6)
            ),
            "1 are indexed": replace(GOOD, indexed=1),
            "0 came back": replace(GOOD, verified=0),
            "no document was indexed anew": replace(GOOD, reindexed=0),
            "no imported file had a phrase": replace(GOOD, search=None),
            "does not find a.txt": replace(GOOD, search=replace(GOOD.search, is_found=False)),
            "approved has published nothing: None": replace(GOOD, approved=None),
            "approved has published nothing: Approved": replace(
                GOOD, approved=replace(GOOD.approved, is_published=False)
            ),
            "announced 2 times": replace(GOOD, approved=replace(GOOD.approved, announced=2)),
            "before its cooling-off time": replace(
                GOOD, approved=replace(GOOD.approved, seconds=1.9)
            ),
            "did not fail with GATE_REJECTED: None": replace(GOOD, rejected=None),
            "did not fail with GATE_REJECTED: Rejected": replace(
                GOOD, rejected=replace(GOOD.rejected, code=None)
            ),
            "document is still there": replace(
                GOOD, rejected=replace(GOOD.rejected, is_removed=False)
            ),
            "ended with UNHANDLED_ERROR": replace(
                GOOD, crash=replace(GOOD.crash, code="UNHANDLED_ERROR")
            ),
            "ended with None": replace(GOOD, crash=None),
            "had no tasks": replace(GOOD, fall=None),
            "had 12 tasks, 11 came back": replace(GOOD, fall=replace(GOOD.fall, back=11)),
            "the place of process 11": replace(GOOD, crash=replace(GOOD.crash, replacement=None)),
        }

        for words, facts in broken.items():
            with self.subTest(words):
                reasons = list(untrue(facts))

                assert len(reasons) == 1, reasons
                assert words in reasons[0]


class FilesTests(SimpleTestCase):
    """Tests of the files that the running Python has."""

    def test_never_more_files_are_chosen_than_asked_for_and_always_some_that_are_not_utf8(
        self,
    ) -> None:
        for most in (4, 25, 600):
            files = choose(most)
            assert len(files) <= most
            assert len(files) > most * 0.75

            odd = [file for file in files if not is_utf8(file.content)]
            assert odd
            assert len(odd) < len(files)

            assert max(len(file.content) for file in files) <= LARGEST_BYTES
            assert len({file.path for file in files}) == len(files)

    def test_a_batch_goes_into_one_folder_and_no_file_is_left_out(self) -> None:
        files = choose(200)
        parts = list(batches(files))

        assert [file for part in parts for file in part] == files
        assert all(len({file.folder for file in part}) == 1 for part in parts)

    def test_the_sample_is_not_utf8(self) -> None:
        assert not is_utf8(SAMPLE.content)

    def test_a_phrase_is_plain_words_of_one_line(self) -> None:
        assert first_phrase("x = 1\n# Permission is hereby granted free, of charge") is None
        assert (
            first_phrase("a = b\n  some rights are granted here\n")
            == "some rights are granted here"
        )
