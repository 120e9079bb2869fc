"""Tests of the functions from bytes to text, counts and fingerprints."""

from __future__ import annotations

from django.test import SimpleTestCase

from example_project.library import reading
from example_project.library.fetching import FetchError, parse

WORDS = [f"word{number}" for number in range(2_000)]


class ReadingTests(SimpleTestCase):
    """Tests without a database."""

    def test_a_byte_that_is_not_utf8_is_named_with_its_place(self) -> None:
        with self.assertRaisesMessage(
            reading.NotText, "byte 0xff at position 3 is not UTF-8"
        ) as caught:
            reading.decode(b"abc\xff")

        assert caught.exception.position == 3

    def test_text_that_is_kept_comes_back_byte_for_byte(self) -> None:
        content = "\ufeffa\r\nb\rc\n\u2028ü".encode()
        assert reading.decode(content).encode() == content

    def test_lines_and_words_are_counted(self) -> None:
        measured = reading.measure("one two\nthree, FOUR four\n")

        assert (measured.lines, measured.words) == (2, 5)
        assert measured.common[0] == ("four", 2)

    def test_chapters_are_whole_lines_and_together_the_text(self) -> None:
        line = "word " * 999 + "\r\n"

        for text in ("", "no end", line * 100, "x" * 100_000 + "\n" + line * 7 + "the end"):
            chapters = list(reading.chapters(text))
            assert "".join(chapters) == text
            assert all(len(chapter) >= reading.CHAPTER_CHARACTERS for chapter in chapters[:-1])
            assert all(chapter.endswith("\n") for chapter in chapters[:-1])

    def test_chapters_measured_alone_give_what_the_whole_text_gives(self) -> None:
        text = (
            "".join(f"{' '.join(WORDS[start : start + 40])}\n" for start in range(0, 2_000, 40)) * 3
        )
        whole = reading.measure(text)
        assert len(list(reading.chapters(text))) > 1

        together = reading.combine(map(reading.measure, reading.chapters(text)))

        assert (together.lines, together.words, together.characters) == (
            whole.lines,
            whole.words,
            whole.characters,
        )
        assert len(together.fingerprints) == reading.FINGERPRINTS
        assert len(set(together.fingerprints) & set(whole.fingerprints)) >= reading.FINGERPRINTS - 5

        assert reading.combine([]) == reading.Measured(0, 0, 0, [], [])

    def test_the_words_that_are_common_in_all_chapters_are_those_of_the_text(self) -> None:
        parts = [reading.measure("apple " * 3 + "plum " * 2), reading.measure("plum " * 2 + "pear")]
        assert reading.combine(parts).common == [("plum", 4), ("apple", 3), ("pear", 1)]

    def test_a_text_shorter_than_a_shingle_has_no_fingerprint(self) -> None:
        assert reading.fingerprints(WORDS[:4]) == []
        assert len(reading.fingerprints(WORDS[:5])) == 1

    def test_a_fingerprint_is_the_same_in_every_process(self) -> None:
        assert reading.hash64("a b c d e") == 4875218132451392338

    def test_the_share_of_common_fingerprints_is_near_the_share_of_common_text(self) -> None:
        one = set(reading.fingerprints(WORDS))
        other = set(reading.fingerprints(WORDS[:1_000] + [word[::-1] for word in WORDS[1_000:]]))

        assert len(one) == reading.FINGERPRINTS
        # Half of each text is common, which is a third of both together. The estimate may be wrong
        # by a tenth.
        assert abs(len(one & other) / len(one | other) - 1 / 3) < 0.1


class FetchingTests(SimpleTestCase):
    """Tests of answers that may come back instead of a page."""

    def test_an_answer_is_taken_apart(self) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\r\n"
        assert parse(answer) == (200, b"a\r\n")

    def test_an_answer_that_is_cut_off_or_no_http_is_refused(self) -> None:
        for answer, words in (
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "after 4 of 10 bytes"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "is not HTTP"),
            (b"", "is not HTTP"),
        ):
            with self.assertRaisesMessage(FetchError, words):
                parse(answer)
